"""Agents of the type "external": programs of other makers."""
