"""The scheduler: it claims ticks, starts their runs in a runtime, and reports their results."""
