"""Sandboxes that are forked from a zygote, a process that has imported what they need."""
