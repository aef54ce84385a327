"""The Kubernetes backend: each run gets its own pod, created and watched through the cluster's API."""
