"""Tools by which a model leads other agents."""
