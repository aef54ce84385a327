"""What executes the requests of a guest that `ramet.spawn.sandbox.requests` receives."""
