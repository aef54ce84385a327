"""Execution of a guest's requests for children and files, which `ramet.spawn.sandbox.requests` receives."""
