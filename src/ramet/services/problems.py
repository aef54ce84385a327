"""Errors as problem documents (RFC 9457): bodies of HTTP answers, and the last chunk of a failed turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from ramet.core import errors
from ramet.core.outcome import ErrorInfo
from ramet.services import errors as refusals

PREFIX = "urn:ramet:problem:"  #: the prefix of every type; the rest names the error
MEDIA_TYPE = "application/problem+json"
MAX_DETAIL = 2_000  #: characters
MAX_LISTED = 100


class Problem(Struct, frozen=True, kw_only=True):
    """An error as a client receives it: `type` is for programs, `detail` is for people, `fields` is for both."""

    type: str
    title: str
    status: int  #: the HTTP status, or the status that an error after the headers would have had
    detail: str
    fields: Mapping[str, Any] = {}

    def encode(self) -> bytes:
        """Return the document as JSON; `fields` are on the same level as the other members."""
        members = {"type": self.type, "title": self.title, "status": self.status, "detail": self.detail}
        return msgspec.json.encode({**self.fields, **members})


class _Kind(NamedTuple):
    error: type[errors.RametError]
    status: int
    fields: tuple[str, ...] = ()  #: attributes of the error that the document contains


#: The first match is used, so narrower errors precede wider ones.
_KINDS = (
    _Kind(refusals.Undecodable, 400, ("field",)),
    _Kind(refusals.BodyTooLarge, 413, ("field", "size", "limit")),
    _Kind(refusals.KeyReused, 422, ("field", "accepted")),
    _Kind(errors.InvalidValue, 422, ("field", "accepted")),
    _Kind(errors.IsolationUnavailable, 422, ("asked", "offered", "missing", "remedy")),
    _Kind(errors.NotShippable, 422, ("what", "remedy")),
    _Kind(errors.Denied, 403, ("what", "reason")),
    _Kind(refusals.UnknownKey, 401),
    _Kind(errors.NotYours, 404, ("kind", "name")),
    _Kind(errors.Unknown, 404, ("kind", "name", "known")),
    _Kind(errors.Expired, 410, ("run", "ended", "keep_s")),
    _Kind(refusals.Missed, 410, ("turn", "after", "first")),
    _Kind(refusals.OutcomeUnknown, 410, ("where",)),
    _Kind(errors.Gone, 410),
    # A full team is a conflict with a state, not a rate limit: the document says what is free.
    _Kind(errors.OverCapacity, 409, ("team", "resource", "asked", "free", "room")),
    _Kind(errors.SpawnRefused, 409, ("limit", "free")),
    _Kind(errors.BudgetExceeded, 409, ("resource", "asked", "left", "scope")),
    _Kind(errors.MergeConflict, 409, ("kind", "key", "keys", "expected", "found")),
    _Kind(errors.Conflict, 409, ("kind", "key", "expected", "found")),
    _Kind(refusals.ValuesMissing, 409, ("path", "missing")),
    _Kind(refusals.RequestInProgress, 409),
    _Kind(refusals.InUse, 409, ("kind", "name", "users")),
    _Kind(refusals.TakenOver, 503, ("kind", "name")),
    _Kind(errors.OwnedElsewhere, 503, ("tree", "kernel")),
    _Kind(errors.MailRefused, 409, ("to", "reason")),
    _Kind(refusals.Withdrawn, 409, ("reason",)),
    _Kind(errors.Aborted, 409, ("reason",)),
    _Kind(errors.NeedsInput, 409, ("question", "token")),
    _Kind(errors.BusyError, 429),
    _Kind(errors.OutputTooLarge, 413, ("what", "size", "limit")),
    _Kind(errors.SandboxFailed, 503),
    _Kind(errors.MissingExtra, 501, ("feature", "extra")),
    _Kind(errors.ModelFailed, 502, ("model", "retryable", "retry_after_s")),
    _Kind(errors.OutputInvalid, 502, ("tries",)),
    _Kind(errors.TaskFailed, 502, ("task", "status", "run")),
)


def to_problem(error: BaseException) -> Problem:
    """Return an error as a document. Internal errors become "Internal error", without any internal detail."""
    for kind in _KINDS:
        if isinstance(error, kind.error):
            title_words = re.sub(r"(?<!^)(?=[A-Z])", " ", kind.error.__name__.removesuffix("Error")).lower().split()
            return Problem(
                type=PREFIX + "-".join(title_words),
                title=" ".join(title_words).capitalize(),
                status=kind.status,
                detail=_plain_value(str(error)),
                fields={_name(name): _plain_value(getattr(error, name)) for name in kind.fields},
            )
    detail = "the server failed; the request is not the cause"
    return Problem(type=PREFIX + "internal-error", title="Internal error", status=500, detail=detail)


def error_of(problem: BaseException) -> ErrorInfo:
    """Return an error as agents and jobs store it for their clients: without paths of the server's host."""
    is_inside = not isinstance(problem, errors.RametError) or isinstance(problem, errors.Damaged | errors.StoreFailed)
    message = "the request is not the cause; see the log of the server" if is_inside else str(problem)
    return public_message(ErrorInfo(type=type(problem).__name__, message=message))


def public_message(error: ErrorInfo) -> ErrorInfo:
    """Return an error in a form that can be sent and stored: an agent's text may be long, or invalid Unicode."""
    return ErrorInfo(type=_plain_value(error.type), message=_plain_value(error.message))


def _name(attribute: str) -> str:
    """Return the member for an attribute. The `status` of a task is renamed: the document has a `status` of its own."""
    return "outcome" if attribute == "status" else attribute


def _plain_value(value: Any) -> Any:
    """Return a value as JSON can hold it, with bounded size: a name may contain any text."""
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()
        return text if len(text) <= MAX_DETAIL else text[: MAX_DETAIL - 1] + "…"
    if isinstance(value, Mapping):
        return {_plain_value(str(key)): _plain_value(each) for key, each in list(value.items())[:MAX_LISTED]}
    if isinstance(value, Sequence):
        return [_plain_value(each) for each in value[:MAX_LISTED]]
    return value if value is None or isinstance(value, bool | int | float) else _plain_value(str(value))
