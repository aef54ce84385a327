"""The one place where runs are spawned."""
