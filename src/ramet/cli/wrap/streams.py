"""The streams of a wrapped program: a pseudo-terminal where a person is at one, else three pipes.

The program never gets a stream of this process itself. So it cannot push input into the terminal of the user, change
its modes, or read what the user types for others.
"""

from __future__ import annotations

import contextlib
import os
import pty
import termios
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from ramet.cli.wrap.stream_relay import Relay
from ramet.cli.wrap.user_terminal import UserTerminal

#: The time for the rest of the output after the end of the program, of a terminal that is slow.
_DRAIN_S: Final = 5.0
#: The time for which a terminal has another size, so that a program draws its screen again.
_OTHER_SIZE_S: Final = 0.1


class Streams(Protocol):
    """The streams of a program. The context restores what it has changed of the streams of this process."""

    @property
    def stdio(self) -> tuple[int, ...]:
        """The descriptors for the sandbox (`SandboxSpec.stdio`)."""

    def __enter__(self) -> Streams: ...
    def __exit__(self, *_: object) -> None: ...
    def start(self, on_hang_up: Callable[[], None]) -> None:
        """Begin to copy; `on_hang_up` is called, in a thread, when the terminal of the user has gone."""

    def finish(self) -> None:
        """Copy the rest of the output, once the program and its sandbox have ended."""

    def restore(self) -> None:
        """Restore the terminal of the user now. Idempotent."""


def open_streams() -> Streams:
    """Return the streams that fit those of this process. Raises OSError."""
    for fd in range(3):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        os.open(os.devnull, os.O_RDWR)  # A closed one, of which a pipe would take the number.
    if os.isatty(0) and os.isatty(1):
        return TerminalStreams(UserTerminal())
    return PipeStreams()


class TerminalStreams:
    """A pseudo-terminal that the terminal of the user is a window on."""

    def __init__(self, terminal: UserTerminal) -> None:
        self._terminal = terminal
        self._master, self._slave = pty.openpty()
        os.set_blocking(self._master, False)
        termios.tcsetattr(self._slave, termios.TCSANOW, terminal.saved_modes)
        self._resize()
        terminal.on_resize, terminal.on_redraw = self._resize, self._redraw
        self._relay = Relay()

    @property
    def stdio(self) -> tuple[int, ...]:
        return (self._slave,)

    def __enter__(self) -> TerminalStreams:
        self._terminal.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._terminal.on_resize = self._terminal.on_redraw = lambda: None
        self._terminal.__exit__(None, None, None)
        for fd in (self._slave, self._master):
            if fd >= 0:
                os.close(fd)
        self._slave = self._master = -1

    def start(self, on_hang_up: Callable[[], None]) -> None:
        self._relay.start_output(self._master, 1, self._terminal.feed, on_hang_up)
        self._relay.start_input(0, self._master, on_hang_up)

    def finish(self) -> None:
        os.close(self._slave)  # The last one: the output ends now.
        self._slave = -1
        self._relay.finish(_DRAIN_S)

    def restore(self) -> None:
        self._terminal.restore()

    def _resize(self) -> None:
        """Pass the size on; the programs that use the pseudo-terminal get SIGWINCH if it has changed."""
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetwinsize(self._master, self._terminal.size)

    def _redraw(self) -> None:
        """Have the program draw its screen again: most do so if the size has changed, for long enough to be seen."""
        with contextlib.suppress(OSError, termios.error):
            lines, columns = self._terminal.size
            termios.tcsetwinsize(self._master, (lines, max(columns - 1, 1)))
        timer = threading.Timer(_OTHER_SIZE_S, self._resize)
        timer.daemon = True
        timer.start()


class PipeStreams:
    """Three pipes, whose bytes are those of the streams of this process."""

    def __init__(self) -> None:
        pairs = [os.pipe() for _ in range(3)]
        (stdin, self._input), (self._output, stdout), (self._errors, stderr) = pairs
        self._stdio: tuple[int, ...] = (stdin, stdout, stderr)
        self._open = {fd for pair in pairs for fd in pair}
        os.set_blocking(self._input, False)
        self._relay = Relay()

    @property
    def stdio(self) -> tuple[int, ...]:
        return self._stdio

    def __enter__(self) -> PipeStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self._close(*tuple(self._open))

    def start(self, on_hang_up: Callable[[], None]) -> None:
        # A stream of this process that ends is an end of the stream inside, as between two programs of a shell.
        for source, sink in ((self._output, 1), (self._errors, 2)):
            self._relay.start_output(source, sink, lambda data: None, partial(self._close, source))
        self._relay.start_input(0, self._input, partial(self._close, self._input))

    def finish(self) -> None:
        self._close(*self._stdio)
        self._relay.finish(_DRAIN_S)

    def restore(self) -> None:
        """Do nothing: nothing was changed."""

    def _close(self, *fds: int) -> None:
        for fd in fds:
            with contextlib.suppress(KeyError):  # Another thread has closed it.
                self._open.remove(fd)
                os.close(fd)
