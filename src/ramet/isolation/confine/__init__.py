"""Confinement of a process: its root, its mounts, and the gates that it closes behind itself."""
