"""Limits of a sandbox: control groups, the watchdog where there are none, and the limits of a container."""
