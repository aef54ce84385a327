"""Limits of a sandbox: control groups, the watchdog where there are none, and what a container has."""
