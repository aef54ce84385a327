"""The lifecycle of a pod: created, watched, claimed, and deleted."""
