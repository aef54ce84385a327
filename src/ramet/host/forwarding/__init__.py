"""Model requests of programs in sandboxes: reserved, forwarded to their providers with the host's keys, settled."""
