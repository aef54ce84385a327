"""Where the host keeps files: folders that a stranger may have filled before."""
