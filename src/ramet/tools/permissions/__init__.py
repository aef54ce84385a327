"""Permission rules held against tool calls."""
