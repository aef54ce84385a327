"""Conversion of problem documents to the errors that they describe."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from ramet.core import errors
from ramet.core.errors import OwnedElsewhere, ProtocolError, RametError
from ramet.services import errors as refusals
from ramet.services.problems import PREFIX

_MOST = 2_000
_AWAY: Final = frozenset({502, 503, 504})  #: also the answers of a proxy without a reachable server


def _name(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__.removesuffix("Error")).lower()


_KINDS: Final[dict[str, type[RametError]]] = {
    PREFIX + _name(kind): kind
    for module in (errors, refusals)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, RametError)
}


class Refused(RametError):
    """A refusal without an error class of its own: `status` is HTTP's, `problem` the whole document."""

    status: int
    problem: dict[str, Any]


class StrangeAnswer(ProtocolError):
    """An answer that is no problem document, with HTTP's `status`."""

    def __init__(self, status: int, document: bytes) -> None:
        self.status = status
        super().__init__(f"HTTP {status}: {document[:_MOST].decode(errors='replace')}")


def is_away(error: RametError) -> bool:
    """Return whether an error says that no server can answer just now, and that the request may be repeated."""
    if isinstance(error, Refused | StrangeAnswer):
        return error.status in _AWAY
    return isinstance(error, refusals.TakenOver | OwnedElsewhere | refusals.RequestInProgress)


def error_of(document: bytes, status: int) -> RametError:
    """Return the error that a problem document describes, with the document's fields."""
    try:
        problem = msgspec.json.decode(document, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return StrangeAnswer(status, document)
    kind = _KINDS.get(str(problem.get("type")), Refused)
    error = kind.__new__(kind)
    error.args = (str(problem.get("detail", f"HTTP {status}")),)
    fields = {name: value for name, value in problem.items() if name not in ("type", "title", "status", "detail")}
    for name, value in fields.items():
        if not name.startswith("_") and not hasattr(Exception, name):  # The document may be malicious.
            setattr(error, "status" if name == "outcome" else name, value)
    if isinstance(error, Refused):
        error.status, error.problem = status, problem
    return error
