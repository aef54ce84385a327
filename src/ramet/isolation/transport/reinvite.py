"""A machine is invited anew while it works: a line of JSON on its standard input, from whoever may write there."""

from __future__ import annotations

import asyncio
import os
import sys
from types import TracebackType

from ramet.core.errors import InvalidValue
from ramet.isolation.transport.dialer import check
from ramet.isolation.transport.join_token import JoinToken, parse_token

_MOST = 192 * 1024  #: bytes of a line; a certificate of 64 KiB is longer in JSON
_READ = 1 << 16


class TokenStream:
    """What comes on a descriptor, which is closed in the end. To be entered as a context, on a running event loop.

    What is no invitation is ignored, and said on standard error. Where nothing can come, nothing does.
    """

    def __init__(self, source: int, *, pod: str) -> None:
        """`source` is a pipe, a socket, or closed (-1); a file has no invitations. `pod` is this one's uid."""
        self._source, self._pod = source, pod
        self._last: JoinToken | None = None
        self._news = asyncio.Event()
        self._rest = bytearray()
        self._is_skipping = False  #: up to the end of a line that is too long

    async def __aenter__(self) -> TokenStream:
        if self._source >= 0:
            try:
                os.set_blocking(self._source, False)
                asyncio.get_running_loop().add_reader(self._source, self._read)
            except OSError:  # A file: nobody writes there.
                self._close()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    async def other_than(self, known: JoinToken) -> JoinToken:
        """The last that has come, once that is not `known`: who invites says the same again until somebody comes."""
        while self._last is None or self._last == known:
            self._news.clear()
            await self._news.wait()
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
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._rest += line
            if not self._is_skipping and self._rest:
                self._take(bytes(self._rest))
            self._rest.clear()
            self._is_skipping = False
        self._rest += rest
        if len(self._rest) > _MOST:
            if not self._is_skipping:
                _say(f"a line of more than {_MOST} bytes")
            self._is_skipping = True
            self._rest.clear()

    def _take(self, line: bytes) -> None:
        try:
            invitation = parse_token(line, pod=self._pod)
            check(invitation)
        except InvalidValue as problem:
            _say(str(problem))
        else:
            self._last = invitation
            self._news.set()

    def _close(self) -> None:
        source, self._source = self._source, -1
        if source >= 0:
            asyncio.get_running_loop().remove_reader(source)
            os.close(source)


def _say(what: str) -> None:
    sys.stderr.write(f"ramet: on standard input there was no invitation, and it is ignored: {what}\n")
    sys.stderr.flush()
