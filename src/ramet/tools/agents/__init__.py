"""Tools with which a model leads other agents."""
