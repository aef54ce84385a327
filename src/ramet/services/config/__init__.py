"""The configuration of a server, from `ramet.yaml`, the environment and flags, and the server that it describes."""
