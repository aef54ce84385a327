"""The files that a command names."""
