"""Suites for people who write a store, a backend, or a policy adapter. Nothing that runs an agent imports them."""
