"""Connections between the kernel and a pod: attached by the API server, or dialled by the pod."""
