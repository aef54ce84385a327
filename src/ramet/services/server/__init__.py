"""The server: its start, its operator's key, and its initial teams."""
