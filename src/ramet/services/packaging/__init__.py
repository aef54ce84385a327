"""Code that agents can import: bundles, uploaded, checked and kept by their content, and images made of them."""
