"""What is at work in a pod whose kernel is killed; travels there with its module."""

from __future__ import annotations

from ramet.guest.client import save_checkpoint


def steps(count: int) -> int:
    """Ask for something so often, one after the other."""
    for number in range(count):
        save_checkpoint(number)
    return count
