"""Agents that are programs of other makers: what each needs, as data."""
