"""The terminal of the user: raw while a program uses it, and as it was before at every end.

A guard, a process of its own, waits for the end of this process. If this process was killed, the guard restores the
terminal: no handler could.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import termios
import time
import tty
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

from ramet.cli.wrap.screen_modes import ScreenModes

_REPLY_S: Final = 0.25  #: time that a terminal has to reply before its late replies are given up
_STATUS_QUERY, _STATUS_REPLY = b"\x1b[5n", b"\x1b[0n"
_MAX_RESET: Final = 1024  #: bytes of the output that resets a terminal
_IGNORED_BY_GUARD = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


class UserTerminal:
    """A context in which the terminal behind stdin and stdout is raw. Create it before any thread.

    The process may be stopped (SIGTSTP) meanwhile: the terminal is then as it was before, and raw again afterwards.
    """

    def __init__(self, stdin: int = 0, stdout: int = 1, *, reply_s: float = _REPLY_S) -> None:
        self._stdin, self._stdout, self._reply_s = stdin, stdout, reply_s
        self.saved_modes = termios.tcgetattr(stdin)
        self._is_raw = False
        self._modes = ScreenModes()
        self._shared_reset = mmap.mmap(-1, 2 + _MAX_RESET)  #: the output that resets the terminal, for the guard
        self._guard: tuple[int, int] | None = None  #: its pid, and the pipe whose end it waits for
        self._previous_handlers: dict[int, Any] = {}
        self.on_resize: Callable[[], None] = lambda: None  #: called when the size has changed, or may have
        self.on_redraw: Callable[[], None] = lambda: None  #: called when the screen of the program was lost

    @property
    def size(self) -> tuple[int, int]:
        """The lines and columns. Raises OSError if the terminal is gone."""
        return termios.tcgetwinsize(self._stdout)

    def feed(self, data: bytes) -> None:
        """Take note of output that the program writes to the terminal."""
        self._modes.feed(data)
        if self._modes.has_escapes:
            reset = self._modes.reset()[:_MAX_RESET]
            self._shared_reset[2 : 2 + len(reset)] = reset
            self._shared_reset[:2] = len(reset).to_bytes(2, "big")

    def __enter__(self) -> UserTerminal:
        self._start_guard()
        for number, handler in ((signal.SIGTSTP, self._suspend), (signal.SIGCONT, self._continue)):
            self._previous_handlers[number] = signal.signal(number, handler)
        self._previous_handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: self.on_resize())
        try:
            self._make_raw()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self.restore()
        if self._guard is not None:
            pid, pipe = self._guard
            self._guard = None
            with contextlib.suppress(OSError):
                os.write(pipe, b"1")
            os.close(pipe)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)

    def restore(self) -> None:
        """Make the terminal as it was before, and discard unread input: it was meant for the program. Idempotent."""
        if not self._is_raw:
            return
        self._is_raw = False
        with contextlib.suppress(OSError):
            # A terminal that has stopped reading, and would block a writer, is left as it is.
            if self._modes.has_escapes and select.select([], [self._stdout], [], 0)[1]:
                os.write(self._stdout, self._modes.reset() + _STATUS_QUERY)
                self._discard_replies()
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._stdin, termios.TCSAFLUSH, self.saved_modes)

    def _make_raw(self) -> None:
        tty.setraw(self._stdin, termios.TCSADRAIN)
        self._is_raw = True

    def _discard_replies(self) -> None:
        """Read what the terminal replies to queries of the program: a shell would take a late reply for a command.

        A terminal answers queries in their order, so the reply to ours is the last one.
        """
        deadline, received = time.monotonic() + self._reply_s, b""
        while _STATUS_REPLY not in received and (left := deadline - time.monotonic()) > 0:
            if not select.select([self._stdin], [], [], left)[0] or not (data := os.read(self._stdin, 4096)):
                return
            received = received[-len(_STATUS_REPLY) :] + data

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Stop this process, with the terminal as it was before. SIGCONT continues.

        A process that no shell would continue is not stopped by the kernel, and goes on at once.
        """
        self.restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        self._continue(number, frame)

    def _continue(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTSTP, self._suspend)
        was_restored = not self._is_raw  # Otherwise the shell did not have the terminal.
        with contextlib.suppress(OSError, termios.error):
            self._make_raw()
            if was_restored and (modes := self._modes.set_again()):
                os.write(self._stdout, modes)
                return self.on_redraw()
        self.on_resize()

    def _start_guard(self) -> None:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                self._watch(read_end)
            finally:
                os._exit(0)
        os.close(read_end)
        self._guard = pid, write_end

    def _watch(self, read_end: int) -> None:
        """Run as the guard, to its end."""
        os.setpgid(0, 0)  # A signal for the group of this process is not for the guard.
        for number in _IGNORED_BY_GUARD:  # It may then change the terminal from the background.
            signal.signal(number, signal.SIG_IGN)
        os.dup2(read_end, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        if os.read(3, 1):
            return
        if not _is_raw(termios.tcgetattr(self._stdin)):
            return  # A shell has restored it, and reads its own input from it.
        size = int.from_bytes(self._shared_reset[:2], "big")
        with contextlib.suppress(OSError):
            os.write(self._stdout, self._shared_reset[2 : 2 + size])
        termios.tcsetattr(self._stdin, termios.TCSAFLUSH, self.saved_modes)


def _is_raw(modes: list[Any]) -> bool:
    return not modes[tty.LFLAG] & (termios.ICANON | termios.ISIG)
