"""Programs that run inside a pod."""
