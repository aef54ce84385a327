"""Model requests of programs in sandboxes, on their way between a guest's channel and the host's forwarder."""
