"""Sandboxes on another machine: a node agent that runs the backend `local` there, and its client in the kernel."""
