"""Measurements, one module for each, which runs in its own process: `python -m benchmarks.measures NAME …`."""
