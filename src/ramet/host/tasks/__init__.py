"""Typed tasks that host code asks of agents."""
