"""Tools whose functions run in a thread, a process, or an image."""
