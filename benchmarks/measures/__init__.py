"""One file for each thing that is measured, in a process of its own: `python -m benchmarks.measures NAME …`."""
