"""Soak test of `ramet serve`: mixed load with faults and restarts, and what grows with the number of turns."""
