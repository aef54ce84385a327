"""Agents as data, for the journal."""
