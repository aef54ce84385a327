"""The Kubernetes API: requests, objects, and their errors."""
