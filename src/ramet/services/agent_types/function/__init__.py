"""Agents of the type "function"."""
