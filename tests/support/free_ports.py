"""Ports that a test chooses before it listens at them, or at which nothing is to listen."""

from __future__ import annotations

import random
import socket

#: Below those that the system gives to whoever asks for any: another program may get one of these at every moment.
_PORTS = range(10_000, 30_000)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port at which no program listens, and which the system gives to nobody else."""
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as trial:
            try:
                trial.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"every port from {_PORTS.start} to {_PORTS.stop - 1} is in use at {host}")
