"""The code that moves functions and their sources into a sandbox."""
