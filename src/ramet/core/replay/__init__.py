"""Replay of a journal into the state of its tree."""
