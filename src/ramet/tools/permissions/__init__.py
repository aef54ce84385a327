"""Permission rules applied to tool calls."""
