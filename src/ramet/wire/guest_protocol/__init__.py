"""The protocol between a guest in a sandbox and its host."""
