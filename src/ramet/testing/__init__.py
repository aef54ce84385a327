"""Conformance suites for authors of a store, a backend, or a policy adapter.

No module that runs an agent imports them.
"""
