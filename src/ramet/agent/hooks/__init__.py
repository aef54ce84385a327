"""Hooks: the user's own decisions at defined points of a run."""
