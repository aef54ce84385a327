"""Conversations on record."""
