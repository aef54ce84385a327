"""Machine-readable logs: each record is one line, each line is one JSON object.

    {"timestamp": "2026-05-22T14:30:00.123Z", "level": "INFO", "logger": "runtime", "message": "…", "session_id": "…"}

A line has the four fields above, then the values of `extra`, then `exception` and `stack` if there are any. A line that
is written inside a run's tool call, or inside an agent's function, has three more fields of that run, unless its
`extra` has them: `session_id` (the id of the tree's root), `run` and `path`.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from ramet.core.errors import InvalidValue
from ramet.core.outcome import safe_repr
from ramet.host.observability.redaction import MAX_SECRET, STARS, Redaction, names_secret
from ramet.tools.context import current_call

#: Bytes of a line. Container runtimes cut longer lines at 16 KiB, and then they are not valid JSON.
MAX_LINE = 16_000
#: Characters of each text of a line: applied one after the other until the line is short enough.
_CHARS = (8_000, 2_000, 400, 80)
_MAX_EXTRAS, _MAX_ITEMS, _MAX_DEPTH = 64, 64, 5
_MAX_NAME = 200
_MAX_BITS, _MAX_BYTES = 1_024, 2_000

#: The attributes of every record; any other attribute was given as `extra`.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",  # uvicorn's second copy of the message, for terminals
}
_OWN_FIELDS = frozenset({"timestamp", "level", "logger", "message", "exception", "stack"})
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_setting_up = threading.Lock()


def setup_logging(
    structured: bool = True,
    level: str | int = "INFO",
    *,
    stream: TextIO | None = None,
    secrets: Iterable[str] = (),
) -> None:
    """Write the records of all loggers of this process, from `level` on, one line each, as JSON or plain text.

    The lines go to standard error, or to `stream`. Secrets are masked: `secrets`, the values of variables such as
    ANTHROPIC_API_KEY, and texts that look like a key. A repeated call replaces the earlier setup; other handlers stay
    unchanged. Raises InvalidValue.
    """
    number = _level(level)
    if not isinstance(structured, bool):
        raise InvalidValue("structured", structured, "True or False")
    if stream is not None and not callable(getattr(stream, "write", None)):
        raise InvalidValue("stream", stream, "a text stream, or None")
    handler = Lines(stream, Redaction(secrets), structured=structured)
    with _setting_up:
        root = logging.getLogger()
        for old in [each for each in root.handlers if isinstance(each, Lines)]:
            root.removeHandler(old)
            old.close()
        root.addHandler(handler)
        root.setLevel(number)
        _take_over_uvicorn()


class Lines(logging.Handler):
    """A handler that writes records as lines. It never raises, whatever a record holds or the stream does."""

    def __init__(self, stream: TextIO | None, redaction: Redaction, *, structured: bool) -> None:
        super().__init__()
        self._stream, self._redaction, self._is_structured = stream, redaction, structured

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line. A line that cannot be written is lost: there is no place to report that."""
        try:
            line = self.line(record)
            stream = (
                self._stream if self._stream is not None else sys.stderr
            )  # The present one: it may have been replaced.
            try:
                stream.write(line + "\n")
            except UnicodeEncodeError:
                stream.write(line.encode("ascii", "backslashreplace").decode("ascii") + "\n")
            flush = getattr(stream, "flush", None)
            if flush is not None:
                flush()
        except Exception:
            return

    def line(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without its line end."""
        try:
            self._redaction.read_environment()
            fields = self._fields(record)
            for chars in _CHARS:
                text = self._render(_cut(fields, chars))
                if len(text.encode("utf-8", "replace")) <= MAX_LINE:
                    return text
            main_fields = {name: value for name, value in fields.items() if name in _OWN_FIELDS}
            return self._render(_cut(main_fields, _CHARS[-1]) | {"left_out": len(fields) - len(main_fields)})
        except Exception as problem:  # The logging code must not fail because of a bad record.
            message = f"a record could not be formatted: {type(problem).__name__}"
            now = _utc(time.time())
            return self._render({"timestamp": now, "level": "ERROR", "logger": "ramet.logs", "message": message})

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return all fields, as JSON, in order, without secrets, not yet shortened."""
        clean = self._clean
        fields: dict[str, Any] = {
            "timestamp": _utc(record.created),
            "level": clean(record.levelname),
            "logger": clean(record.name),
            "message": clean(_message(record)),
        }
        extras = {str(name): value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
        extras = _current_run_fields() | extras
        for name, value in list(extras.items())[:_MAX_EXTRAS]:
            label = clean(name)[:_MAX_NAME]
            fields[f"extra.{label}" if label in _OWN_FIELDS else label] = self._plain(value, label)
        if len(extras) > _MAX_EXTRAS:
            fields["left_out"] = len(extras) - _MAX_EXTRAS
        if record.exc_info:
            if record.exc_info[1] is not None:  # exc_info may be requested without an exception.
                fields["exception"] = clean("".join(traceback.format_exception(record.exc_info[1])).rstrip(), end=True)
        elif record.exc_text:
            fields["exception"] = clean(record.exc_text, end=True)
        if record.stack_info:
            fields["stack"] = clean(record.stack_info, end=True)
        return fields

    def _plain(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Return a value as JSON: other objects become their repr, and values of secret names become stars."""
        if name and names_secret(name, value):
            return STARS
        if value is None or isinstance(value, bool):
            return value
        kind = type(value)
        if kind is int and value.bit_length() <= _MAX_BITS:
            return value
        if kind is float and math.isfinite(value):
            return value
        if isinstance(value, str):
            return self._clean(str.__str__(value))
        if depth < _MAX_DEPTH and kind is dict:
            items = list(value.items())[:_MAX_ITEMS]
            return {
                (label := self._clean(key if isinstance(key, str) else safe_repr(key))[:_MAX_NAME]): self._plain(
                    item, label, depth + 1
                )
                for key, item in items
            }
        if depth < _MAX_DEPTH and kind in (list, tuple):
            return [self._plain(item, depth=depth + 1) for item in value[:_MAX_ITEMS]]
        if kind in (bytes, bytearray):
            value = value[:_MAX_BYTES]
        if kind is int:
            return f"an integer of {value.bit_length()} bits"
        return self._clean(safe_repr(value))

    def _clean(self, text: str, *, end: bool = False) -> str:
        """Return a text without secrets, including those that cross the later cut."""
        limit = _CHARS[0] + MAX_SECRET
        return self._redaction.clean(text[-limit:] if end else text[:limit])

    def _render(self, fields: Mapping[str, Any]) -> str:
        if self._is_structured:
            return json.dumps(fields, allow_nan=False)
        other_fields = [f"{name}={_value(value)}" for name, value in list(fields.items())[4:]]
        first = f"{fields['timestamp']} {fields['level']} {fields['logger']}: {fields['message']}"
        return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], " ".join([first, *other_fields]))


def _level(level: str | int) -> int:
    names = logging.getLevelNamesMapping()
    names.pop("NOTSET", None)
    number = names.get(level.strip().upper()) if isinstance(level, str) else level
    if type(number) is not int or number not in names.values():
        raise InvalidValue("level", level, f"one of {', '.join(sorted(names, key=lambda name: names[name]))}")
    return number


def _take_over_uvicorn() -> None:
    """Route uvicorn's records to the root logger, if uvicorn has set up handlers of its own."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        for handler in list(logger.handlers):
            if type(handler.formatter).__module__ == "uvicorn.logging":
                logger.removeHandler(handler)
                logger.propagate = True


def _message(record: logging.LogRecord) -> str:
    try:
        return str.__str__(record.getMessage())
    except Exception as problem:
        template = f"{safe_repr(record.msg)} % {safe_repr(record.args)}"
        return f"{template} (it could not be formatted: {type(problem).__name__})"


def _current_run_fields() -> dict[str, str]:
    """Return the run in whose tool call, or function, the record is logged."""
    call = current_call.get()
    if call is None:
        return {}
    run = call.context.run
    return {"session_id": run.root, "run": run.id, "path": run.path}


def _utc(created: float) -> str:
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _cut(fields: dict[str, Any], chars: int) -> dict[str, Any]:
    """Return the fields with no text longer than `chars`; of a traceback the end is kept, which is most informative."""
    return {name: _shorter(value, chars, end=name in ("exception", "stack")) for name, value in fields.items()}


def _shorter(value: Any, chars: int, *, end: bool = False) -> Any:
    if isinstance(value, str):
        if len(value) <= chars:
            return value
        return f"(cut) …{value[-chars:]}" if end else f"{value[:chars]}… (cut)"
    if isinstance(value, dict):
        return {name: _shorter(item, chars) for name, item in value.items()}
    if isinstance(value, list):
        return [_shorter(item, chars) for item in value]
    return value


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value and " " not in value else json.dumps(value, ensure_ascii=False)
