"""An audit log: the consequential events of a runtime's trees, each sent to every sink.

It reports spawns and ends of runs, approvals and their answers, refusals and reductions, access from a sandbox to the
outside, and problems of gates. It does not repeat conversations: it contains no prompts, no text of mail, no results;
those are in the transcripts. A request for approval is reported, without secrets.
"""

from __future__ import annotations

import inspect
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from ramet.core import events
from ramet.core.errors import InvalidValue
from ramet.core.events import Event
from ramet.core.outcome import safe_repr
from ramet.host.journal.recorder import Recorder
from ramet.host.journal.subscription import Listener, listen
from ramet.host.observability.redaction import MAX_SECRET, STARS, Redaction, names_secret

_log = logging.getLogger("ramet.audit")

#: An event as JSON: `time`, `type`, its run, and the fields of its type.
AuditEntry = dict[str, Any]
#: Called with every entry, in the event loop and in order: it must be quick, and gets a copy of its own.
Sink = Callable[[AuditEntry], None]

#: Characters of a text, items of a list, and levels of what is nested in an entry.
MAX_CHARS, MAX_ITEMS, MAX_DEPTH = 2_000, 64, 6

#: The reported types, and for each type the fields that are left out: they hold conversation text, or are too large.
_REPORTED: Mapping[type[Event], frozenset[str]] = {
    events.RunSpawned: frozenset({"prompt", "description", "birth"}),
    events.RunResumed: frozenset(),
    events.RunEnded: frozenset(),
    events.RunRetried: frozenset(),
    events.ResultReused: frozenset(),
    events.ClampEvent: frozenset(),
    events.PolicyDecided: frozenset(),
    events.AgentCreated: frozenset(),
    events.StateCommitted: frozenset(),
    events.BudgetRefused: frozenset(),
    events.ApprovalAsked: frozenset(),
    events.ApprovalAnswered: frozenset(),
    events.IntentionRecorded: frozenset(),
    events.IntentionDecided: frozenset(),
    events.HookFailed: frozenset(),
    events.SandboxStarted: frozenset(),
    events.FolderLost: frozenset(),
    events.ClockStepped: frozenset(),
    events.EndpointAsked: frozenset(),
    events.CommandRun: frozenset(),
    events.MailPushed: frozenset({"text"}),
    events.ToolEnded: frozenset({"preview", "elapsed_ms", "spilled_to"}),  # only for denied calls
    events.Notice: frozenset(),  # only with an error
}
#: Fields that are left out of a result.
_OMITTED_RESULT_FIELDS = ("value", "partial", "stdout", "stderr")


class Audit:
    """A dispatcher of entries to sinks: an `AuditFile`, `to_log`, any function of one entry.

    A sink that fails is logged once, and called again with the next entry; the other sinks, and the run, continue.
    """

    def __init__(self, sinks: Iterable[Sink], *, secrets: Iterable[str] = ()) -> None:
        """Set the sinks.

        Secrets are masked as in `setup_logging`. Raises InvalidValue for a sink that cannot be called.
        """
        self._sinks = tuple(sinks)
        for index, sink in enumerate(self._sinks):
            if not callable(sink) or inspect.iscoroutinefunction(sink):
                raise InvalidValue(f"sinks[{index}]", sink, "a plain function of one entry, or an AuditFile")
        self._redaction = Redaction(secrets)
        self._failing: set[int] = set()

    def attach(self, recorder: Recorder) -> Listener:
        """Report a tree, from its first event until it closes."""
        return listen(recorder, self.on_event)

    def on_event(self, event: Event) -> None:
        """Send an event to every sink, if the event is consequential."""
        if type(event) not in _REPORTED or not _is_reported(event):
            return
        entry = self._entry(event)
        for index, sink in enumerate(self._sinks):
            self._try(index, partial(sink, _copy(entry)))

    def close(self) -> None:
        """Close the sinks that can be closed; idempotent if they are."""
        for index, sink in enumerate(self._sinks):
            close = getattr(sink, "close", None)
            if callable(close):
                self._try(index, close)

    def _try(self, index: int, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:
            if index not in self._failing:
                self._failing.add(index)
                _log.error("audit sink %s failed: %s", _name(self._sinks[index]), error, exc_info=error)
        else:
            self._failing.discard(index)

    def _entry(self, event: Event) -> AuditEntry:
        fields = msgspec.to_builtins(_without_large_parts(event), str_keys=True, enc_hook=safe_repr)
        for name in _REPORTED[type(event)]:
            fields.pop(name, None)
        for name in _OMITTED_RESULT_FIELDS:
            fields.get("result", {}).pop(name, None)
        at = event.at or datetime.now(UTC)
        header = {"time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "type": fields.pop("type")}
        fields.pop("at", None)
        self._redaction.read_environment()
        return header | {name: self._sanitize(value, name) for name, value in fields.items()}

    def _sanitize(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Return plain data, without secrets, bounded to the limits of an entry."""
        if name and names_secret(name, value):
            return STARS
        if isinstance(value, str):
            text = self._redaction.clean(value[: MAX_CHARS + MAX_SECRET])
            return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}… (cut)"
        if isinstance(value, dict | list) and depth >= MAX_DEPTH:
            return f"… ({len(value)} items)"
        if isinstance(value, dict):
            labels = {
                self._redaction.clean(str(key)[:MAX_SECRET])[:200]: each for key, each in _first_items(value.items())
            }
            return {label: self._sanitize(item, label, depth + 1) for label, item in labels.items()}
        if isinstance(value, list | tuple):
            return [self._sanitize(item, "", depth + 1) for item in _first_items(value)]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def to_log(entry: AuditEntry) -> None:
    """Write a line of the logger `ramet.audit`, with the entry as its extra `audit`. A sink."""
    _log.info("%s %s", entry["type"], entry.get("path", ""), extra={"session_id": entry.get("root"), "audit": entry})


def _is_reported(event: Event) -> bool:
    match event:
        case events.ToolEnded():
            return event.status == "denied"
        case events.Notice():
            return event.error is not None
        case _:
            return True


def _without_large_parts(event: Event) -> Event:
    """Return the event without its large unreported parts: a conversation, a result."""
    match event:
        case events.RunSpawned():
            return replace(event, birth={})
        case events.RunEnded():
            return replace(event, result=replace(event.result, value=None, partial="", stdout="", stderr=""))
        case _:
            return event


def _first_items(items: Iterable[Any]) -> list[Any]:
    return [each for each, _ in zip(items, range(MAX_ITEMS), strict=False)]


def _copy(entry: AuditEntry) -> AuditEntry:
    copied: AuditEntry = json.loads(json.dumps(entry))
    return copied


def _name(sink: Sink) -> str:
    return str(getattr(sink, "__qualname__", None) or sink)[:200]
