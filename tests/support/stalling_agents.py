"""An agent type that keeps the interpreter's lock in C: nothing of Python runs in its server meanwhile."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import AsyncIterator

from ramet.services.contract import Opening, Served
from tests.support.echo_agents import Echo, EchoType

ENTRY_POINT = "[ramet.agent_types]\nstalling = tests.support.stalling_agents:StallingType\n"


class PollFd(ctypes.Structure):
    """What `poll` of C takes."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


def stand_still_in_c(fd: int) -> None:
    """Keep the interpreter's lock until something can be read, for a minute at most."""
    libc = ctypes.PyDLL(None)  # Unlike those of CDLL, its functions keep the lock.
    libc.poll(ctypes.byref(PollFd(fd, select.POLLIN, 0)), ctypes.c_ulong(1), 60_000)


class Stalling(Echo):
    """A body is the name of a pipe: it stands still until that can be read."""

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        fd = os.open(body, os.O_RDWR)
        try:
            stand_still_in_c(fd)
        finally:
            os.close(fd)
        yield b"it went on"


class StallingType(EchoType):
    """Opens them."""

    name = "stalling"

    async def open(self, opening: Opening) -> Served:
        return Stalling(opening)
