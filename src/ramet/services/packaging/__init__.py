"""Code that agents can import: bundles, uploaded, checked and stored by their content, and images of bundles."""
