"""A notification: what happened, to which run, and the command with which a person answers.

It contains no key and no token, so a link or a copy of it approves nothing. Secrets in its texts are masked, and every
text is bounded. It repeats no conversation, unless a target asks for the text of results.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from ramet.core.events import ApprovalAnswered, ApprovalAsked, Event, LimitPaused, RunEnded, RunLooping, RunSilent
from ramet.core.liveness.findings import describe_finding
from ramet.core.replay.paused_limits import raise_option
from ramet.host.argument_preview import preview, shorten
from ramet.host.observability.redaction import STARS, Redaction, names_secret
from ramet.store.contract import KernelInfo

#: The kind of notification that an event of this tag becomes.
KIND_BY_TAG: Final[Mapping[str, str]] = {
    "approval_asked": "approval",
    "limit_paused": "paused",
    "run_ended": "ended",
    "run_silent": "run_silent",
    "run_looping": "run_looping",
}
KERNEL_LOST: Final = "kernel_lost"
KINDS: Final = (*KIND_BY_TAG.values(), KERNEL_LOST)
#: The tag of the event after which the question of an approval needs no answer any more.
ANSWERED_TAG: Final = "approval_answered"
_MAX_ERROR = 500  #: characters of an error's message
_MAX_NAME = 500  #: characters of a path or a name


class Notification(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message to people. Fields of other kinds are empty, and are not sent."""

    id: str  #: the same at each attempt, and in each process
    kind: str  #: approval | paused | ended | run_silent | run_looping | kernel_lost
    time: datetime  #: of the event
    text: str  #: one line or two for people
    tree: str = ""  #: id of the root run
    run: str = ""
    path: str = ""
    agent: str = ""
    command: str = ""  #: with which a person answers
    approval: str = ""  #: id of the question
    tool: str = ""
    question: str = ""
    arguments: dict[str, Any] = {}  #: bounded; an omission is marked
    resource: str = ""  #: of the limit
    asked: float | None = None
    left: float | None = None
    scope: str = ""  #: path of the run whose limit it is
    status: str = ""  #: of the ended run
    error: str = ""
    result: str = ""  #: text of the result, if the target asks for it
    kernel: str = ""  #: name of the lost kernel

    def as_json(self) -> bytes:
        """Return the notification as one JSON object."""
        return msgspec.json.encode(self)

    def as_slack(self) -> bytes:
        """Return the text as a message of Slack's incoming webhooks. Nothing in it becomes a mention or a link."""
        text = self.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return msgspec.json.encode({"text": text})


class NotificationWriter:
    """A writer of notifications, which masks secrets."""

    def __init__(self, redaction: Redaction | None = None) -> None:
        self._redaction = redaction if redaction is not None else Redaction()

    def from_event(self, event: Event, *, with_text: bool = False) -> Notification | None:
        """Return the notification about an event; None for an event that no kind is about."""
        self._redaction.read_environment()
        match event:
            case ApprovalAsked():
                return self._of_approval(event)
            case LimitPaused():
                return self._of_limit(event)
            case RunEnded():
                return self._of_end(event, with_text)
            case RunSilent() | RunLooping():
                return self._of_watch(event)
            case _:
                return None

    def of_lost_kernel(self, lost: KernelInfo, *, at: datetime, by: str) -> Notification:
        """Return the notification that a kernel ended without closing its store; `by` is the kernel that says so."""
        name = self._clean(lost.name, _MAX_NAME)
        return Notification(
            id=f"kernel-{_plain_id(lost.name)}-{lost.epoch}",
            kind=KERNEL_LOST,
            time=at,
            text=f"Kernel {name} was lost, as kernel {self._clean(by, _MAX_NAME)} reports. Living kernels that adopt "
            "trees continue its work.",
            kernel=name,
        )

    def _of_approval(self, event: ApprovalAsked) -> Notification:
        tool, question = self._clean(event.tool, _MAX_NAME), self._clean(event.question)
        command = f"ramet approve {event.approval_id}"
        header = self._header(event)
        return Notification(
            **header,
            kind="approval",
            text=f"{header['path']} asks to use {tool}: {question}\nAnswer: {command} (or ramet deny "
            f"{event.approval_id})",
            command=command,
            approval=event.approval_id,
            tool=tool,
            question=question,
            arguments=self._mask(preview(event.args)),
        )

    def _of_limit(self, event: LimitPaused) -> Notification:
        header, scope = self._header(event), self._clean(event.scope, _MAX_NAME)
        # The event has the path of the run whose limit it is. Only the ids of this run and of the root are known.
        id = event.run if scope == header["path"] else event.root if "/" not in scope else f"ID of {scope}"
        command = f"ramet raise {id} {raise_option(event.resource)} AMOUNT"
        return Notification(
            **header,
            kind="paused",
            text=f"{header['path']} waits at the limit {event.resource} of {scope} (needs {event.asked:g}, "
            f"{event.left:g} left).\nRaise it: {command}",
            command=command,
            resource=event.resource,
            asked=event.asked,
            left=event.left,
            scope=scope,
        )

    def _of_end(self, event: RunEnded, with_text: bool) -> Notification:
        header, result = self._header(event), event.result
        error = ""
        if result.error is not None:
            error = self._clean(f"{result.error.type}: {result.error.message}", _MAX_ERROR)
        status = str(result.status)
        return Notification(
            **header,
            kind="ended",
            text=f"{header['path']} ended: {status}" + (f" ({error})" if error else ""),
            status=status,
            error=error,
            result=self._clean(result.text) if with_text else "",
        )

    def _of_watch(self, event: RunSilent | RunLooping) -> Notification:
        header, command = self._header(event), f"ramet show {event.run}"
        finding = self._clean(describe_finding(event), _MAX_ERROR)
        consequence = {"end": " It is being ended.", "pause": " It is being paused."}.get(event.action, "")
        tool = self._clean(event.tool, _MAX_NAME) if isinstance(event, RunLooping) else ""
        return Notification(
            **header,
            kind=KIND_BY_TAG[tag_of(event)],
            text=f"{header['path']}: {finding}.{consequence}\nLook at it: {command}",
            command=command,
            tool=tool,
        )

    def _header(self, event: Event) -> dict[str, Any]:
        return {
            "id": f"{_plain_id(event.root)}-{event.seq}",
            "time": event.at or datetime.now(UTC),
            "tree": event.root,
            "run": event.run,
            "path": self._clean(event.path, _MAX_NAME),
            "agent": self._clean(event.agent, _MAX_NAME),
        }

    def _clean(self, text: str, most: int | None = None) -> str:
        """Return a text without secrets, shortened to `most` characters, or like an argument."""
        # Before the text is shortened: a part of a secret would not be found.
        clean = self._redaction.clean(text)
        if most is None:
            return shorten(clean)
        clean = clean.encode("utf-8", "replace").decode()
        return clean if len(clean) <= most else f"{clean[:most]}… (cut)"

    def _mask(self, value: Any, name: str = "") -> Any:
        """Return plain data without secrets. The names of fields count, too."""
        if name and names_secret(name, value):
            return STARS
        if isinstance(value, str):
            return self._redaction.clean(value)
        if isinstance(value, dict):
            return {self._redaction.clean(key): self._mask(each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [self._mask(each) for each in value]
        return value


def tag_of(event: Event) -> str:
    """Return the tag of an event's type."""
    return str(type(event).__struct_config__.tag)


def answered_approval(event: Event) -> str:
    """Return the id of the question that an event answers; empty if the event answers none."""
    return event.approval_id if isinstance(event, ApprovalAnswered) else ""


def _plain_id(text: str) -> str:
    """Return an id without the dot that separates the parts of a signed text."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "-_") else "_" for each in text)
