"""Waiting: cancellation, mail, slots, time. Knows no agents."""
