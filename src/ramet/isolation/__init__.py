"""The sandboxes in which runs work. This package does not know agents."""
