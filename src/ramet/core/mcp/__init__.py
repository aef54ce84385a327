"""Servers of the Model Context Protocol, as data."""
