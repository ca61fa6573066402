"""Any moment of a journal: its state, its steps, its events, the story of a sequence. Knows files and no terminal."""
