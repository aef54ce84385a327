"""Servers of the Model Context Protocol as processes of a sandbox."""
