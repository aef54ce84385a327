"""The scheduler: it claims ticks, starts their runs in a runtime, and says what became of them."""
