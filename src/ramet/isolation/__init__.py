"""Where a run's work happens. Knows no agents."""
