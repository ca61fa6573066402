"""The HTTP side of the engine. Stands on engine and telemetry."""
