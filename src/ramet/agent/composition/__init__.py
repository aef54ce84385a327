"""Agents made of agents: one after the other, side by side, or along the edges of a graph."""
