"""Opening of the folders in which the host stores files, which a stranger may have filled before."""
