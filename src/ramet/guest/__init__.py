"""The small program inside a sandbox: the other end of the channel."""
