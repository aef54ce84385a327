"""Recorded conversations."""
