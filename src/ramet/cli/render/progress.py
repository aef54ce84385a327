"""Events as lines: progress, one per notable event, for pipes and plain terminals; and all of them, for a log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ramet.cli.render import formatting
from ramet.cli.render.refused_requests import describe_refusal
from ramet.cli.render.sanitize import one_line, question_text
from ramet.cli.render.tree_model import ENDINGS, WAITING_TOOLS, TreeModel
from ramet.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BudgetRefused,
    ClampEvent,
    ClockStepped,
    Compacted,
    Event,
    FolderLost,
    ForwardRefused,
    HookFailed,
    LimitPaused,
    LimitsRaised,
    MailPushed,
    MessageRecorded,
    ModelRetried,
    MovedToBackground,
    Notice,
    PauseEnded,
    PolicyDecided,
    QuotaReached,
    RunEnded,
    RunLooping,
    RunPaused,
    RunResumed,
    RunRetried,
    RunSilent,
    RunSpawned,
    SandboxStarted,
    ToolEnded,
    ToolProgressed,
    ToolStarted,
    TurnEnded,
)
from ramet.core.liveness.findings import describe_finding
from ramet.core.outcome import Status

_LIMIT = 400  #: characters of a message
_VERBS = {"human": "receives", "ai": "replies", "system": "is instructed"}


class Line(NamedTuple):
    """A line of progress. `is_rare` ones are shown even next to a live tree."""

    text: str
    is_rare: bool = False


def describe(event: Event, model: TreeModel) -> Line | None:
    """Return the line of an event that the model already has; None if there is nothing to show."""
    line = _line(event, model)
    return None if line is None else Line(f"{one_line(event.path, 120)}: {line.text}", line.is_rare)


def _line(event: Event, model: TreeModel) -> Line | None:
    row = model.rows[event.run]
    match event:
        case RunSpawned():
            subject = f": {one_line(row.task, 100)}" if row.task and event.depth else ""
            return Line(f"started {one_line(event.agent, 64)}{subject}")
        case ToolStarted(tool=tool) if tool in WAITING_TOOLS:
            return None  # the child reports its start
        case ToolStarted():
            return Line(row.calls[event.call_id or event.step_id][1])
        case ToolProgressed():
            share = f"{event.done:g}" + (f" of {event.total:g}" if event.total is not None else "")
            return Line(f"{one_line(event.tool, 100)}: {share}" + (f", {one_line(event.text)}" if event.text else ""))
        case ToolEnded(status="ok" | "cancelled"):
            return None
        case ToolEnded():
            reason = one_line(event.preview, 160).removeprefix("Denied: ").removeprefix("Error: ")
            return Line(f"{one_line(event.tool, 40)} {event.status}: {reason}", event.status == "denied")
        case RunEnded(result=result):
            figures = [formatting.duration(row.seconds(event.at or row.started_at))] if row.started_at else []
            figures += [f"{formatting.tokens(row.usage.tokens)} tokens"] if row.usage.tokens else []
            reason = f": {one_line(result.error.message)}" if result.error else ""
            return Line(f"{ENDINGS[result.status]}{reason}" + (f" ({', '.join(figures)})" if figures else ""))
        case TurnEnded() if event.depth == 0 and event.turn > 1 and event.status != Status.COMPLETED:
            return Line(f"a later message could not be processed: {event.status}", True)
        case ModelRetried():
            return Line(f"{one_line(event.model, 60)} failed, retried in {event.wait_s:.1f}s: {one_line(event.reason)}")
        case QuotaReached():
            return Line(
                f"waits for the quota of {one_line(event.model, 60)}, until {event.until:%Y-%m-%d %H:%M:%S} UTC"
            )
        case ForwardRefused():
            return Line(describe_refusal(event))
        case BudgetRefused():
            return Line(f"budget of {event.scope}: {event.resource} asked {event.asked:g}, left {event.left:g}")
        case LimitPaused():
            refusal = f"{event.resource} asked {event.asked:g}, left {event.left:g}"
            return Line(f"paused at the limit of {event.scope}: {refusal}; see ramet raise", True)
        case RunPaused():
            cut = ", its work is cut" if event.now else ""
            return Line("paused by a person" + (f": {one_line(event.reason)}" if event.reason else "") + cut, True)
        case MovedToBackground():
            return Line("goes on in the background: its parent waits no longer")
        case PauseEnded():
            return Line("goes on after a pause by a person")
        case LimitsRaised():
            return Line("limits raised by " + ", ".join(f"{name} {more:g}" for name, more in event.add.items()))
        case RunSilent() | RunLooping():
            end = {"end": ", and is ended", "pause": ", and is paused"}.get(event.action, "")
            return Line(one_line(describe_finding(event)) + end, True)
        case ClampEvent():
            return Line(f"{event.field} {event.asked:g} was lowered to {event.given:g}, the limit of its parent")
        case PolicyDecided() if event.verdict != "allow":
            done = "narrowed" if event.verdict == "narrow" else "refused"
            reason = f": {one_line(event.reason)}" if event.reason else ""
            return Line(f"policy adapter {one_line(event.adapter, 40)} {done} {one_line(event.child, 40)}{reason}")
        case ApprovalAsked():
            return Line(f"asks to run {question_text(event.tool, event.args, event.question)}")
        case ApprovalAnswered():
            reason = f": {one_line(event.reason)}" if event.reason else ""
            return Line(("allowed" if event.allowed else "not allowed") + reason)
        case HookFailed():
            return Line(f"hook {one_line(event.hook, 80)} failed on {event.event}: {one_line(event.reason)}", True)
        case FolderLost():
            return Line(f"its {one_line(event.part, 20)} no longer exists: the run continues in an empty one", True)
        case ClockStepped():
            return Line(f"the machine's clock was set by {event.by_s:+g} s", True)
        case Compacted():
            return Line(f"history compacted from {event.before_messages} to {event.after_messages} messages")
        case Notice():
            return Line(one_line(event.text, 400), True)
        case _:
            return None


def line_of(event: Event, model: TreeModel) -> str | None:
    """Return the line of an event, with its time in UTC; None if there is nothing to show.

    The model has the event already.
    """
    line = describe(event, model)
    text = line.text if line is not None else None
    if text is None and (details := _details(event)) is not None:
        text = f"{one_line(event.path, 120)}: {details}"
    if text is None:
        return None
    return f"{event.at:%Y-%m-%d %H:%M:%S} {text}" if event.at is not None else text


def _details(event: Event) -> str | None:
    match event:
        case MessageRecorded(message=message):
            verb, text = _VERBS.get(str(message.get("type"))), _text(message)
            return f"{verb}: {one_line(text, _LIMIT)}" if verb is not None and text.strip() else None
        case ToolEnded(status="ok"):
            return f"{one_line(event.tool, 40)} answered: {one_line(event.preview, 160)}" if event.preview else None
        case MailPushed():
            return f"message from {one_line(event.sender, 120)}: {one_line(event.text, _LIMIT)}"
        case RunResumed():
            interrupted = f", {formatting.count(len(event.cut), 'call')} interrupted" if event.cut else ""
            return f"resumed in another process{interrupted}"
        case SandboxStarted():
            return f"runs in a sandbox: {one_line(event.backend, 40)}, {one_line(event.level, 40)}"
        case RunRetried():
            return f"{one_line(event.status, 40)}, retried in {event.wait_s:.1f}s: {one_line(event.reason)}"
        case _:
            return None


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return " ".join(str(each.get("text", "")) for each in blocks if isinstance(each, Mapping))
