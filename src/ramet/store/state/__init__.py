"""Versioned state: values by key, as commits that share what did not change. `versioned` is the way in."""
