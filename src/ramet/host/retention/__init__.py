"""How long trees, results and folders are kept."""
