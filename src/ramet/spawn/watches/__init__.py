"""Watches on runs: what a run waits for, and what happens when it is silent or repeats a call."""
