"""A little code for words, which a team shares."""

from .words import count, halves, together, written

__all__ = ["count", "halves", "together", "written"]
