"""Schedules: as somebody asks for one, and as they are on record."""
