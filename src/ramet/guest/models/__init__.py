"""The endpoint for models inside a sandbox: HTTP on a loopback address, forwarded by the host."""
