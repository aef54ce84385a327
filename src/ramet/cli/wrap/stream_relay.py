"""Copy bytes between the streams of this process and those of a program in a sandbox: unchanged, and at once.

Each direction has a thread, which holds at most one piece: a reader that is slow, or does not read, slows its writer
down, and nothing gathers.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

_READ_BYTES = 64 * 1024
_WRITE_BYTES = 4096  #: PIPE_BUF: so much fits when a descriptor is reported as writable


class Relay:
    """The copies of one program, until `finish`."""

    def __init__(self) -> None:
        self._wake, self._waker = os.pipe()
        self._outputs: list[threading.Thread] = []
        self._inputs: list[threading.Thread] = []

    def start_input(self, source: int, sink: int, on_end: Callable[[], None]) -> None:
        """Copy input for the program until the source ends; then call `on_end` in the thread of the copy."""
        self._start(self._inputs, source, sink, lambda data: None, on_end)

    def start_output(
        self, source: int, sink: int, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        """Copy output of the program until the source ends, or the sink; then call `on_end`, as for input.

        `on_data` is called with each piece before it is written.
        """
        self._start(self._outputs, source, sink, on_data, on_end)

    def finish(self, within_s: float) -> None:
        """Wait until all output is copied, which ends by itself once no process holds the other end; end all copies.

        A sink that does not read for so long loses the rest.
        """
        deadline = time.monotonic() + within_s
        for thread in self._outputs:
            thread.join(max(0.0, deadline - time.monotonic()))
        os.write(self._waker, b"1")
        for thread in (threads := [*self._inputs, *self._outputs]):
            thread.join(max(0.1, deadline - time.monotonic()))
        if not any(each.is_alive() for each in threads):
            os.close(self._wake)
            os.close(self._waker)

    def _start(
        self,
        threads: list[threading.Thread],
        source: int,
        sink: int,
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        def run() -> None:
            with contextlib.suppress(OSError):  # Either end is closed: EIO of a terminal, EPIPE.
                while data := self._read(source):
                    on_data(data)
                    if not self._write(sink, data):
                        return
            on_end()

        thread = threading.Thread(target=run, name="ramet-relay", daemon=True)
        threads.append(thread)
        thread.start()

    def _read(self, source: int) -> bytes:
        """Return the next piece; empty at the end of the source, and of the relay."""
        ready = self._wait(source, select.POLLIN)
        return os.read(source, _READ_BYTES) if ready else b""

    def _write(self, sink: int, data: bytes) -> bool:
        """Write a piece; return False if the relay has ended before all of it was written."""
        view = memoryview(data)
        while view:
            if not self._wait(sink, select.POLLOUT):
                return False
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(sink, view[:_WRITE_BYTES]) :]
        return True

    def _wait(self, fd: int, event: int) -> bool:
        """Wait until a descriptor is ready; return False once the relay has ended."""
        poll = select.poll()
        poll.register(fd, event)
        poll.register(self._wake, select.POLLIN)
        return all(each != self._wake for each, _ in poll.poll())
