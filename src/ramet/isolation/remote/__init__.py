"""Sandboxes on another machine: the backend `local` at work there, and what it starts as the kernel sees it."""
