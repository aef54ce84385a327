"""A new join token for a running machine: a line of JSON on its standard input, from anyone who may write there."""

from __future__ import annotations

import asyncio
import os
import sys

from ramet.core.errors import InvalidValue
from ramet.isolation.transport.dialer import check
from ramet.isolation.transport.join_token import JoinToken, parse_token

_MOST = 192 * 1024  #: the limit of a line in bytes; a certificate of 64 KiB is longer in JSON
_READ = 1 << 16


class TokenStream:
    """The join tokens that arrive on a descriptor. Enter it as a context, on a running event loop.

    The descriptor is closed at the end. A line that is no join token is ignored, and reported on standard error. A
    descriptor that cannot deliver any gives no tokens and no error.
    """

    def __init__(self, source: int, *, pod: str) -> None:
        """Create the stream.

        `source` is a pipe, a socket, or closed (-1); a file has no tokens. `pod` is the uid of this pod.
        """
        self._source, self._pod = source, pod
        self._last: JoinToken | None = None
        self._has_changed = asyncio.Event()
        self._partial_line = bytearray()
        self._is_skipping = False  #: until the end of a line that is too long

    async def __aenter__(self) -> TokenStream:
        if self._source >= 0:
            try:
                os.set_blocking(self._source, False)
                asyncio.get_running_loop().add_reader(self._source, self._read)
            except OSError:  # A file gets no new data.
                self._close()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    async def wait_other(self, known: JoinToken) -> JoinToken:
        """Wait for a token that differs from `known`, and return the latest one.

        The sender repeats the same token until the pod connects.
        """
        while self._last is None or self._last == known:
            self._has_changed.clear()
            await self._has_changed.wait()
        return self._last

    def _read(self) -> None:
        try:
            data = os.read(self._source, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close()
        *lines, partial = data.split(b"\n")
        for line in lines:
            self._partial_line += line
            if not self._is_skipping and self._partial_line:
                self._take(bytes(self._partial_line))
            self._partial_line.clear()
            self._is_skipping = False
        self._partial_line += partial
        if len(self._partial_line) > _MOST:
            if not self._is_skipping:
                _warn(f"a line of more than {_MOST} bytes")
            self._is_skipping = True
            self._partial_line.clear()

    def _take(self, line: bytes) -> None:
        try:
            invitation = parse_token(line, pod=self._pod)
            check(invitation)
        except InvalidValue as problem:
            _warn(str(problem))
        else:
            self._last = invitation
            self._has_changed.set()

    def _close(self) -> None:
        source, self._source = self._source, -1
        if source >= 0:
            asyncio.get_running_loop().remove_reader(source)
            os.close(source)


def _warn(problem: str) -> None:
    sys.stderr.write(f"ramet: a line on standard input is not a join token, and is ignored: {problem}\n")
    sys.stderr.flush()
