"""Folders of the host that a sandbox writes to: which ones are refused, and what in them stays read-only."""
