"""OCI images and registries."""
