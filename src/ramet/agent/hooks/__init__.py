"""Hooks: the user's own decisions at the turning points of a run."""
