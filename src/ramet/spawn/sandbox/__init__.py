"""The host's half of a run that works in a sandbox."""
