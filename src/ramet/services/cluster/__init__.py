"""Several kernels on one store: who has what, and how a request reaches it, whichever of them it came to."""
