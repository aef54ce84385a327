"""Functions and their sources on their way into a sandbox."""
