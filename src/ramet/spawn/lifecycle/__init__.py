"""The lifecycle of a run: its turns, its mail, and its stop."""
