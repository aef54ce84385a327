"""`ramet` as a person or a program runs it: a real process, at a real terminal or with pipes."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import sys
import termios
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

from tests.support.providers import Provider
from tests.support.warm import starts_warm

MODEL = "openai:gpt-5.4-mini"
BOUND_S = 180.0  #: passed only by a test that fails


class CommandOutput(NamedTuple):
    """The status and the output of a process."""

    status: int
    out: str
    err: str


def environment(server: Provider | None, **more: str) -> dict[str, str]:
    """Return the environment of a process, with a provider on the loopback if there is a server."""
    wire = {} if server is None else {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "test"}
    plain = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    return {**plain, "TERM": "xterm-256color", **wire, **more}


@asynccontextmanager
async def running_ramet(
    *args: str, server: Provider | None = None, env: Mapping[str, str] = {}, **options: Any
) -> AsyncIterator[Process]:
    """Start a process of `ramet`, and end it afterwards. With a `server`, `ask` uses a model there.

    `how` goes to asyncio.
    """
    model = ("--model", MODEL) if server is not None and "ask" in args else ()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ramet", *args, *model, env={**environment(server), **env}, **options
    )
    try:
        async with asyncio.timeout(BOUND_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ramet(*args: str, stdin: bytes = b"", **options: Any) -> CommandOutput:
    """Run a command to its end, with pipes."""
    async with running_ramet(*args, stdin=PIPE, stdout=PIPE, stderr=PIPE, **options) as process:
        out, err = await process.communicate(stdin)
    assert process.returncode is not None
    return CommandOutput(process.returncode, out.decode(), err.decode())


class Terminal:
    """A terminal with `ramet` in its foreground: the text written to it, and a keyboard."""

    def __init__(self, keyboard: int) -> None:
        self._keyboard = keyboard
        self._written = bytearray()
        self._news = asyncio.Event()
        self._gone = False
        self.process: Process

    @property
    def text(self) -> str:
        """Return the text so far, escape sequences included."""
        return self._written.decode(errors="replace")

    def read(self) -> None:
        """Read the output of the process."""
        try:
            data = os.read(self._keyboard, 65536)
        except OSError:  # the last process with this terminal is gone
            data = b""
        if not data:
            self._gone = True
            asyncio.get_running_loop().remove_reader(self._keyboard)
        self._written.extend(data)
        self._news.set()

    async def shows(self, text: str, times: int = 1) -> None:
        """Wait until the text was written so often."""
        while self.text.count(text) < times:
            assert not self._gone, f"the process ended before {text!r} was shown:\n{self.text}"
            self._news.clear()
            await self._news.wait()

    @property
    def modes(self) -> list[Any]:
        """Return the modes of the terminal, as of `termios.tcgetattr`."""
        return termios.tcgetattr(self._keyboard)

    def resize(self, lines: int, columns: int) -> None:
        """Change the size, of which the foreground gets a signal."""
        termios.tcsetwinsize(self._keyboard, (lines, columns))

    def type(self, keys: str) -> None:
        """Press keys; `\\x03` is Ctrl-C, which the terminal turns into a signal."""
        os.write(self._keyboard, keys.encode())

    async def enter(self, keys: str, shown: str) -> None:
        """Press keys, and Enter once the program shows what it has read: together they would be a pasted text."""
        count = self.text.count(shown)
        self.type(keys)
        await self.shows(shown, count + 1)
        self.type("\r")

    async def end(self) -> int:
        """Wait for the end of the process and of its output."""
        status = await self.process.wait()
        while not self._gone:
            self._news.clear()
            await self._news.wait()
        return status


@asynccontextmanager
async def terminal(*args: str, server: Provider, columns: int = 80, lines: int = 24) -> AsyncIterator[Terminal]:
    """Yield a terminal in which `ramet …` has just started."""

    def start(**options: Any) -> AbstractAsyncContextManager[Process]:
        if not starts_warm():
            options["preexec_fn"] = _own_terminal
        return running_ramet(*args, server=server, **options)

    async with _open_terminal(start, columns, lines) as opened:
        yield opened


@asynccontextmanager
async def shell_terminal(script: str) -> AsyncIterator[Terminal]:
    """Yield a terminal whose shell has just begun a script, in which `$RAMET` is the command line."""

    @asynccontextmanager
    async def start(**options: Any) -> AsyncIterator[Process]:
        env = environment(None, RAMET=f"{sys.executable} -P -m ramet")
        options["preexec_fn"] = _own_terminal
        process = await asyncio.create_subprocess_exec("sh", "-c", script, env=env, **options)
        try:
            async with asyncio.timeout(BOUND_S):
                yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async with _open_terminal(start, 80, 24) as opened:
        yield opened


@asynccontextmanager
async def _open_terminal(
    start: Callable[..., AbstractAsyncContextManager[Process]], columns: int, lines: int
) -> AsyncIterator[Terminal]:
    keyboard, line = pty.openpty()
    termios.tcsetwinsize(line, (lines, columns))
    modes = termios.tcgetattr(line)
    modes[3] |= termios.NOFLSH  # Ctrl-C would discard what is written, and was not read yet, a moment after its signal.
    termios.tcsetattr(line, termios.TCSANOW, modes)
    terminal = Terminal(keyboard)
    asyncio.get_running_loop().add_reader(keyboard, terminal.read)
    options: dict[str, Any] = {"stdin": line, "stdout": line, "stderr": line, "start_new_session": True}
    try:
        async with start(**options) as terminal.process:
            os.close(line)
            yield terminal
    finally:
        asyncio.get_running_loop().remove_reader(keyboard)
        os.close(keyboard)


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
