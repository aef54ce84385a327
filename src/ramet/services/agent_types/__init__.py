"""The built-in agent types, and the registry that also finds agent types of plugins."""
