"""Tools: the dispatcher, and ramet's own tools."""
