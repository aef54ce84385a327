"""Trees of runs: opened, worked on, and closed."""
