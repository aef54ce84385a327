"""Costs of ramet, measured by `make bench` and never by a test. See docs/design/performance.md."""
