"""Each run in a pod of its own, made and watched through the API of a cluster."""
