"""A journal, live or past: its state, steps, events and stories at any moment."""
