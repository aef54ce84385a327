"""Equal tool calls with equal results, one after the other, in the conversation of a run.

Of each call only a hash is kept, and only of the newest reply's calls. A result that was too long for the conversation
counts by its length and its beginning: the name of the file with its whole text differs each time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

_MAX_CALLS = 1_000  #: of one reply
_MAX_NAME = 200  #: characters of a tool's name
#: The remark that replaces the rest of a long result (`ramet.tools.dispatch`), with the place of the whole.
_REMARK = re.compile(r"(\n… \[\d+ characters, the first \d+ shown\.) [^\n]*\]\Z")


class Repeat(NamedTuple):
    """The newest call, and how often in a row it was made with the same result."""

    tool: str
    call_id: str
    times: int


class _Call(NamedTuple):
    tool: str
    digest: bytes


class CallRepeats:
    """A counter of equal calls in a row. Messages are added in the order in which they are recorded."""

    __slots__ = ("_calls", "_newest", "_times")

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}  #: of the newest reply, without a result
        self._newest = b""  #: hash of the newest call with its result
        self._times = 0

    def clear(self) -> None:
        """Begin anew: what follows does not continue what was before."""
        self._calls.clear()
        self._newest, self._times = b"", 0

    def add(self, message: Mapping[str, Any]) -> Repeat | None:
        """Add a recorded message; return the call whose result it is, if it is one."""
        kind = message.get("type")
        if kind == "ai":
            self._calls = {}
            for call in (*(message.get("tool_calls") or ()), *(message.get("invalid_tool_calls") or ()))[:_MAX_CALLS]:
                tool = str(call.get("name"))[:_MAX_NAME]
                self._calls[str(call.get("id"))] = _Call(tool, _digest([call.get("name"), call.get("args")]))
        elif kind == "tool":
            call_id = str(message.get("tool_call_id"))
            made = self._calls.pop(call_id, None)
            if made is None:
                return None
            content = message.get("content")
            if isinstance(content, str):
                content = _REMARK.sub(r"\1]", content)
            newest = made.digest + _digest([content, message.get("status")])
            self._times = self._times + 1 if newest == self._newest else 1
            self._newest = newest
            return Repeat(made.tool, call_id, self._times)
        return None


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(value, order="deterministic"), digest_size=16).digest()
