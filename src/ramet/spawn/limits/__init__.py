"""Limits that pause: what waits there, and how they are raised."""
