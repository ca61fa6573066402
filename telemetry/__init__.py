"""The journal and what is read from it. Knows neither the engine nor torch."""
