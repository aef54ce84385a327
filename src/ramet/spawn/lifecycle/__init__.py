"""The life of a run: its turns, its mail, and how it is stopped."""
