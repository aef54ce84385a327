"""Schedules: the requests for them, and their records."""
