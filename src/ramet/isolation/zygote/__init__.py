"""Sandboxes that are forked from a zygote, a process that has imported the modules they need."""
