"""Schedules of a host: requests for them, the scheduler that fires them, and their views."""
