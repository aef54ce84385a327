"""Versioned state: values by key, as commits that share unchanged parts. `versioned` is the entry point."""
