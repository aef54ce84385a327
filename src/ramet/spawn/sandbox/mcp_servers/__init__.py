"""Sandboxes of servers of the Model Context Protocol, beside those of their agents."""
