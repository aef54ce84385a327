"""Signs of life of a run: the settings of a watch, and how a repeated call is found."""
