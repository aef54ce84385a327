"""What ramet costs: measured by `python -m benchmarks` (`make bench`), never by a test. See docs/performance.md."""
