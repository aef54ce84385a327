"""Waiting: cancellation, mail, slots, time. The package has no knowledge of agents."""
