"""Opens the folders in which the host stores files. A stranger may have filled them before."""
