"""Costs of ramet, measured by `python -m benchmarks` (`make bench`) and never by a test. See docs/performance.md."""
