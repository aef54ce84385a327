"""The host's side of a run that works in a sandbox."""
