"""An agent type that holds the interpreter's lock in C: no Python code of its server runs meanwhile."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
from collections.abc import AsyncIterator

from ramet.services.contract import AgentSpec, RunningAgent
from tests.support.echo_agents import Echo, EchoType

ENTRY_POINT = "[ramet.agent_types]\nstalling = tests.support.stalling_agents:StallingType\n"


class PollFd(ctypes.Structure):
    """The structure that `poll` of C takes."""

    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


def stand_still_in_c(fd: int, seconds: int) -> bool:
    """Hold the interpreter's lock until something can be read, or for so many seconds; return whether it can be read.

    A caller that waits for a dump lets the loop run for a while, and tries again: the dump is made after this call.
    """
    libc = ctypes.PyDLL(None)  # Unlike those of CDLL, its functions keep the lock.
    return bool(libc.poll(ctypes.byref(PollFd(fd, select.POLLIN, 0)), ctypes.c_ulong(1), seconds * 1_000))


class Stalling(Echo):
    """An agent that stands still until the pipe whose name is the body can be read."""

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        fd = os.open(body, os.O_RDWR)
        try:
            while not stand_still_in_c(fd, 2):  # noqa: ASYNC110 - nothing of Python says when it can be read
                await asyncio.sleep(1)  # A beat of the watch, at least.
        finally:
            os.close(fd)
        yield b"it went on"


class StallingType(EchoType):
    """An agent type whose agents stand still."""

    name = "stalling"

    async def open(self, spec: AgentSpec) -> RunningAgent:
        return Stalling(spec)
