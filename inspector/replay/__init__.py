"""A recorded run, decided again by the real scheduler and block manager: as it was, or with other settings."""
