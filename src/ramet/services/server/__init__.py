"""The server: its start, its operator's key, and the teams that it begins with."""
