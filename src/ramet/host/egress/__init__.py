"""The proxy that is the only way out of a sandbox."""
