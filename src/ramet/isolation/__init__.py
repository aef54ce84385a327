"""The place where a run's work happens. This package does not know agents."""
