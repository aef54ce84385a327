"""A run as its tree stores it."""
