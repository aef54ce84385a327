"""`ramet.yaml`, the environment and flags as one configuration, and the server that it describes."""
