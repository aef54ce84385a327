"""Encode errors as data and decode them: by class name, message and fields.

Only ramet's own errors are decoded to their own class, with fields of the correct types. Any other name becomes a
RametError that contains the name. No constructor of an error runs with data received over a channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ramet.core import errors
from ramet.core.errors import RametError
from ramet.core.outcome import ErrorInfo

#: Maximum number of characters of an encoded message.
MAX_MESSAGE: Final = 4000
_MAX_NAME: Final = 200

_Number = float | None
_Names = tuple[str, ...]
#: The error classes that are decoded to themselves, and the types of their attributes.
_FIELDS: Final[Mapping[type[RametError], Mapping[str, Any]]] = {
    errors.Aborted: {"reason": str},
    errors.AgentNotResolved: {"handle": str, "kind": str, "name": str, "why": str},
    errors.BudgetExceeded: {"resource": str, "asked": float, "left": float, "scope": str},
    errors.Bug: {},
    errors.BusyError: {},
    errors.Conflict: {"kind": str, "key": str, "expected": int, "found": int},
    errors.Damaged: {"what": str, "where": str, "why": str},
    errors.DamagedTree: {"what": str, "where": str, "why": str, "tree": str, "cursor": int | None},
    errors.DefinitionMissing: {"kind": str, "name": str},
    errors.Denied: {"what": str, "reason": str},
    errors.Expired: {"run": str, "ended": str, "keep_s": _Number},
    errors.Gone: {},
    errors.McpPackageFailed: {"package": str, "reason": str},
    errors.InvalidValue: {"field": str, "value": str | int | float | bool | None, "accepted": str},
    errors.IsolationUnavailable: {"asked": str, "offered": str, "missing": _Names, "remedy": str},
    errors.MailRefused: {"to": str, "reason": str},
    errors.McpServerFailed: {"server": str, "reason": str},
    errors.MergeConflict: {"kind": str, "key": str, "keys": _Names, "expected": int, "found": int},
    errors.MissingValue: {"field": str, "value": None, "accepted": str},
    errors.MissingExtra: {"feature": str, "extra": str},
    errors.ModelFailed: {
        "model": str,
        "reason": str,
        "status": int | None,
        "retryable": bool,
        "retry_after_s": _Number,
    },
    errors.NeedsInput: {"question": str, "token": str},
    errors.NoToolsLeft: {"agent": str, "entries": _Names},
    errors.NotYours: {"kind": str, "name": str},
    errors.NotShippable: {"what": str, "why": str, "remedy": str},
    errors.OutputInvalid: {"problem": str, "tries": int},
    errors.OutputTooLarge: {"what": str, "size": int, "limit": int},
    errors.OwnedElsewhere: {"tree": str, "kernel": str, "address": str},
    errors.OverCapacity: {
        "limit": str,
        "reason": str,
        "free": _Number,
        "team": str,
        "resource": str,
        "asked": float,
        "room": dict[str, float],
    },
    errors.PolicyAdapterFailed: {"limit": str, "reason": str, "free": _Number},
    errors.ProtocolError: {},
    errors.RametError: {},
    errors.SandboxFailed: {},
    errors.SpawnRefused: {"limit": str, "reason": str, "free": _Number},
    errors.StepFailed: {"step": str, "status": str, "path": str, "reason": str},
    errors.StepsExceeded: {"graph": str, "node": str, "max_steps": int},
    errors.StoreFailed: {"where": str, "why": str},
    errors.StoreInUse: {"where": str, "holder": str},
    errors.TaskFailed: {"reason": str, "task": str, "status": str, "run": str},
    errors.UnsavedChanges: {"keys": _Names, "why": str, "remedy": str},
    errors.Unknown: {"kind": str, "name": str, "known": _Names},
}
_BY_NAME: Final = {cls.__name__: cls for cls in _FIELDS}


def encode_error(error: BaseException) -> tuple[ErrorInfo, dict[str, Any]]:
    """Return the error as bounded data; never raises, whatever the error's own methods do."""
    cls = next((base for base in type(error).__mro__ if base in _FIELDS), None)
    fields = {name: _attribute(error, name) for name in _FIELDS[cls]} if cls is not None else {}
    scope = fields.get("scope")
    public_class = cls if cls not in (None, RametError) else type(error)
    return (
        ErrorInfo(type=_name(public_class), message=message_of(error), scope=scope if isinstance(scope, str) else None),
        fields,
    )


def decode_error(info: ErrorInfo, fields: Mapping[str, Any]) -> RametError:
    """Return the decoded error. Fields that are missing or of another type give a plain RametError."""
    cls = _BY_NAME.get(info.type)
    message = clean(info.message[:MAX_MESSAGE])
    if cls is None:
        return RametError(f"{clean(info.type[:_MAX_NAME])}: {message}")
    try:
        values = {name: msgspec.convert(fields[name], kind) for name, kind in _FIELDS[cls].items()}
    except (KeyError, msgspec.ValidationError):
        return RametError(f"{info.type}: {message}")
    error = cls.__new__(cls, message)
    for name, value in values.items():
        setattr(error, name, value)
    return error


def message_of(error: BaseException) -> str:
    """Return the message of an error, bounded and encodable as UTF-8; never raises."""
    try:
        return clean(str.__getitem__(str(error), slice(MAX_MESSAGE)))
    except BaseException as problem:  # an error's own text may fail in any way, even by sys.exit
        return f"(its message cannot be read: {_name(type(problem))})"


def clean(text: str) -> str:
    """Return the text with invalid Unicode replaced by backslash escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _name(cls: Any) -> str:
    try:
        return clean(str.__getitem__(cls.__name__, slice(_MAX_NAME)))
    except BaseException:
        return "Error"


def _attribute(error: BaseException, name: str) -> Any:
    try:
        return _truncate(getattr(error, name, None))
    except Exception:
        return None


def _truncate(value: Any) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 63 else hex(value)[:_MAX_NAME]
    if isinstance(value, str):
        return clean(str.__getitem__(value, slice(MAX_MESSAGE)))
    if isinstance(value, tuple):
        return [_truncate(each) for each in value[:100]]
    if isinstance(value, dict):
        return {clean(str(name)[:_MAX_NAME]): _truncate(each) for name, each in list(value.items())[:100]}
    return f"a {_name(type(value))}"
