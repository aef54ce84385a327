"""Agents composed of agents: in a chain, in parallel, or along the edges of a graph."""
