"""Policies: what a run may do, and how a child's is narrowed."""
