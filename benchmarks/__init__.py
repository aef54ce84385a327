"""Costs of ramet: `python -m benchmarks` (`make bench`) measures them, a test never does. See docs/design/performance.md."""
