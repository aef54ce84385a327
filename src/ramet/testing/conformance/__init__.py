"""Conformance suites: each check is one promise of a contract."""
