"""Commands that outlive the tool call that started them: each ends by itself, is stopped, or ends with its turn."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import wait_with_timeout
from ramet.concurrency.pipes import Capture

#: Commands of one turn that run in the background at the same time.
MAX_COMMANDS: Final = 8
#: Bytes of one output file; what a command writes after that is dropped, and it goes on.
MAX_FILE_BYTES: Final = 16 * 1024 * 1024
_FULL: Final = b"\n[the rest of the output is dropped: the file is full]\n"


class FileCapture(Capture):
    """A capture that also appends the output to a file, once it has one: then another process may read along."""

    __slots__ = ("_descriptor", "_free")

    def __init__(self, *, head: int, tail: int) -> None:
        super().__init__(head=head, tail=tail)
        self._descriptor, self._free = -1, MAX_FILE_BYTES

    def append(self, data: bytes) -> None:
        """Add data to the capture, and to the file, which is never rewritten."""
        super().append(data)
        if self._descriptor >= 0:
            self._write(data)

    def open_file(self, path: Path) -> None:
        """Append the output so far to this file, and from now on all output. Raises OSError."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._write(self.data())

    def close_file(self, last_line: str) -> None:
        """Append the last line, and close the file. Idempotent."""
        if self._descriptor >= 0:
            self._free += len(last_line) + len(_FULL)
            self._write(last_line.encode())
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, data: bytes) -> None:
        if not data or self._free <= 0:
            return
        piece, self._free = data[: self._free], self._free - len(data)
        if self._free <= 0:
            piece += _FULL
        with contextlib.suppress(OSError):  # A full disk ends no command: what was captured stays.
            os.write(self._descriptor, piece)


class BackgroundCommand:
    """A command in the background: its handle, its output file, and its end."""

    def __init__(self, id: str, path: Path, output: FileCapture, task: asyncio.Task[str]) -> None:
        self.id, self.path = id, path
        self._output, self._task = output, task
        task.add_done_callback(lambda _: output.close_file(f"\n[{self.state}]\n"))

    @property
    def is_running(self) -> bool:
        return not self._task.done()

    @property
    def state(self) -> str:
        """Return "running", or how the command ended."""
        if not self._task.done():
            return "running"
        if self._task.cancelled():
            return "stopped"
        failure = self._task.exception()
        return self._task.result() if failure is None else f"failed: {failure}"

    def text(self) -> str:
        """Return the beginning and the end of the output so far."""
        return self._output.data().decode("utf-8", "replace").replace("\0", "␀").rstrip("\n")

    async def wait(self, clock: Clock, timeout_s: float) -> None:
        """Wait for the end, at most so long."""
        with contextlib.suppress(TimeoutError):
            await wait_with_timeout(_ended(self._task), clock=clock, seconds=timeout_s)

    async def stop(self) -> None:
        """End the command with every process that it started, and wait for that."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def _ended(task: asyncio.Task[str]) -> None:
    await asyncio.wait([task])


class BackgroundCommands:
    """The background commands of one turn. Closing it ends them: no command outlives the turn that started it."""

    def __init__(self, new_file: Callable[[str, str], Path], on_left: Callable[[str], object]) -> None:
        """`new_file` returns an empty file of this name; `on_left` is told the commands that a turn left running."""
        self._new_file, self._on_left = new_file, on_left
        self._commands: dict[str, BackgroundCommand] = {}

    def get(self, id: str) -> BackgroundCommand | None:
        return self._commands.get(id)

    @property
    def is_empty(self) -> bool:
        """True if no command was started."""
        return not self._commands

    @property
    def has_room(self) -> bool:
        return sum(each.is_running for each in self._commands.values()) < MAX_COMMANDS

    def add(self, output: FileCapture, task: asyncio.Task[str]) -> BackgroundCommand:
        """Keep a running command; its task returns how it ended. Raises OSError if there can be no file."""
        id = f"bash-{len(self._commands) + 1}"
        path = self._new_file(id, "")
        output.open_file(path)
        command = self._commands[id] = BackgroundCommand(id, path, output, task)
        return command

    async def close(self) -> None:
        """End every command that still runs, and wait for that."""
        running = [each for each in self._commands.values() if each.is_running]
        for each in running:
            self._on_left(each.id)
        stops: list[Awaitable[None]] = [each.stop() for each in running]
        await asyncio.gather(*stops)
