"""Tools that read journals. Stand on telemetry, and on engine for replay."""
