"""The life of a pod: created, watched, claimed, and deleted."""
