"""Several kernels on one store: the owner of each object, and the routing of requests to the owner."""
