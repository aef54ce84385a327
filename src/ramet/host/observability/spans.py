"""The spans of one tree: a view of its events. Runs, models and tools do not depend on this module.

    invoke_agent {agent}                 a run, from its spawn to its end
        create_agent {agent}             of a child: from its spawn to its first turn, which includes its waiting
        turn                             from a prompt, or a wake, to the answer
            chat {model}                 one attempt to ask a model
            execute_tool {tool}
                invoke_agent {agent}     a child, below the call that spawned it

A span begins and ends at the times of its events. No attribute holds conversation text: no prompt, no text, no
argument, no result. This module imports OpenTelemetry; `ramet.host.observability.telemetry` imports this module only if
it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from ramet.core import events, outcome
from ramet.core.events import Event
from ramet.core.outcome import Usage
from ramet.host.observability import genai

Attributes = dict[str, AttributeValue]

#: Characters of a name from a model, a provider or a guest.
MAX_NAME = 100
#: Final statuses that are not failures.
_SUCCESS_STATUSES = frozenset({outcome.Status.COMPLETED, outcome.Status.CANCELLED, outcome.Status.NEEDS_INPUT})
#: Events that are shown as events of the run's present span: the fields of each type.
_EVENT_FIELDS: Mapping[type[Event], tuple[str, ...]] = {
    events.ApprovalAsked: ("approval_id", "tool"),
    events.ApprovalAnswered: ("approval_id", "allowed"),
    events.AgentCreated: ("name", "handle"),
    events.StateCommitted: ("state", "branch", "commit", "keys"),
    events.BudgetRefused: ("resource", "asked", "left", "scope"),
    events.ForwardRefused: ("model", "by", "wait_s"),
    events.ClampEvent: ("field", "asked", "given"),
    events.Compacted: ("before_messages", "after_messages", "before_tokens", "after_tokens"),
    events.EndpointAsked: ("host", "port", "allowed"),
    events.HookFailed: ("hook", "event"),
    events.IntentionDecided: ("tool", "intention", "committed"),
    events.MailDelivered: ("mail_id", "sender", "kind"),
    events.PolicyDecided: ("adapter", "verdict", "child", "failed"),
    events.QuotaReached: ("model", "wait_s"),
    events.ResultReused: ("made_by",),
    events.RunLooping: ("tool", "times", "action"),
    events.RunSilent: ("silent_s", "waits_for", "action"),
    events.RunRetried: ("attempt", "status", "wait_s"),
    events.SandboxStarted: ("backend", "level", "attempt"),
    events.FolderLost: ("part",),
    events.ThresholdCrossed: ("resource", "used", "limit"),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HTTP = re.compile(r"\(HTTP (\d{3})\)")
_RAISED = re.compile(r"([A-Z]\w{0,80}(?:Error|Exception|Exit|Interrupt|Timeout))(?::|\Z)")


@dataclass(slots=True)
class ModelSpan:
    """An attempt to ask a model, until its end is known."""

    span: Span
    failed_at: int | None = None  #: when it failed; the next event has the reason


@dataclass(slots=True)
class RunSpans:
    """The spans of one run."""

    parent_context: Context  #: the context that it was spawned in
    span: Span
    child_context: Context  #: the context for its own spans
    is_open: bool = True
    birth: Span | None = None
    turn: Span | None = None
    turn_context: Context | None = None
    tools: dict[str, Span] = field(default_factory=dict)  #: by call
    model_spans: dict[str, ModelSpan] = field(default_factory=dict)  #: by step


class TreeSpans:
    """The spans of one tree, opened and ended by its events."""

    def __init__(self, tracer: Tracer, outer_context: Context, runs: dict[str, RunSpans]) -> None:
        """Create spans below the span of `outer_context`, if it has one. `runs` receives the spans
        of the tree's runs.
        """
        self._tracer, self._outer_context, self._runs = tracer, outer_context, runs
        self._spans_by_run: dict[str, RunSpans] = {}
        self._last = 0  #: time of the newest event
        self._handlers: Mapping[type[Event], Callable[[Any, int], object]] = {  # Any: each takes its own kind of event
            events.RunSpawned: self._on_spawn,
            events.RunResumed: self._open_spans,
            events.RunEnded: self._on_run_end,
            events.TurnStarted: self._on_turn_start,
            events.TurnEnded: self._on_turn_end,
            events.ModelAsked: self._on_model_request,
            events.ModelCharged: self._on_model_charge,
            events.ModelRetried: self._on_model_retry,
            events.MessageRecorded: self._on_message,
            events.ToolStarted: self._on_tool_start,
            events.ToolEnded: self._on_tool_end,
        }

    def on_event(self, event: Event) -> None:
        """Process an event."""
        kind = type(event)
        do, field_names = self._handlers.get(kind), _EVENT_FIELDS.get(kind)
        if do is None and field_names is None:
            return
        at = self._last = _ns(event.at) if event.at is not None else self._last
        if do is not None:
            do(event, at)
        elif field_names is not None and (run := self._spans_by_run.get(event.run)) is not None:
            attributes = {f"ramet.{name}": getattr(event, name) for name in field_names}
            (run.turn or run.span).add_event(f"ramet.{kind.__struct_config__.tag}", attributes, timestamp=at)

    def close(self) -> None:
        """End all open spans: no more events will come."""
        for run_id, run in reversed(list(self._spans_by_run.items())):
            self._end_run(run, self._last, genai.OTHER)
            self._runs.pop(run_id, None)
        self._spans_by_run.clear()

    # ---- runs

    def _on_spawn(self, event: events.RunSpawned, at: int) -> None:
        attributes: Attributes = {
            genai.MODE: event.mode,
            genai.BACKGROUND: event.background,
            genai.DETACHED: event.detached,
            genai.CONVERSATION_ID: event.session or event.root,
        }
        if event.model:
            attributes[genai.REQUEST_MODEL] = genai.model_of(event.model).name
        run = self._begin(event, at, self._parent_context(event), attributes)
        if event.depth:
            name = event.agent[:MAX_NAME]
            spawn_attributes: Attributes = {genai.OPERATION: genai.CREATE_AGENT, **_agent_attributes(event)}
            run.birth = self._start(f"{genai.CREATE_AGENT} {name}", at, run.child_context, spawn_attributes)

    def _open_spans(self, event: Event, at: int) -> RunSpans:
        """Return the spans of an event's run. A run that had ended, or began in another process, gets a new span."""
        run = self._spans_by_run.get(event.run)
        if run is not None and run.is_open:
            return run
        parent_context = run.parent_context if run is not None else self._parent_context(event)
        return self._begin(event, at, parent_context, {genai.RESUMED: True, genai.CONVERSATION_ID: event.root})

    def _begin(self, event: Event, at: int, parent_context: Context, attributes: Attributes) -> RunSpans:
        if (previous := self._spans_by_run.get(event.run)) is not None:
            self._end_run(previous, at, genai.OTHER)
        base_attributes: Attributes = {
            genai.OPERATION: genai.INVOKE_AGENT,
            **_agent_attributes(event),
            genai.ROOT: event.root,
            genai.PATH: event.path,
            genai.DEPTH: event.depth,
        }
        if event.parent is not None:
            base_attributes[genai.PARENT] = event.parent
        span = self._start(
            f"{genai.INVOKE_AGENT} {event.agent[:MAX_NAME]}", at, parent_context, base_attributes | attributes
        )
        run = RunSpans(parent_context, span, set_span_in_context(span, parent_context))
        self._spans_by_run[event.run] = self._runs[event.run] = run
        return run

    def _parent_context(self, event: Event) -> Context:
        """Return the context of the call that spawned a run, else of the turn, else of the parent run."""
        parent = self._spans_by_run.get(event.parent or "")
        if parent is None:
            return self._outer_context
        call = parent.tools.get(event.parent_call or "")
        child_context = parent.turn_context or parent.child_context
        return child_context if call is None else set_span_in_context(call, child_context)

    def _on_run_end(self, event: events.RunEnded, at: int) -> None:
        run, result = self._open_spans(event, at), event.result
        run.span.set_attributes({genai.STATUS: str(result.status), **_usage_attributes(result.usage)})
        error = str(result.status)
        if result.error is not None and result.status not in _SUCCESS_STATUSES:
            error = result.error.type[:MAX_NAME]
        self._end_run(run, at, error, cut=str(result.status))

    def _end_run(self, run: RunSpans, at: int, error: str, *, cut: str = genai.OTHER) -> None:
        """End a run's spans, from the innermost. `cut` is the status of the spans that were still running."""
        if not run.is_open:
            return
        run.is_open = False
        self._end_turn(run, at, cut)
        if run.birth is not None:
            _end(run.birth, at, error)
            run.birth = None
        _end(run.span, at, error)

    # ---- turns

    def _on_turn_start(self, event: events.TurnStarted, at: int) -> None:
        run = self._open_spans(event, at)
        self._end_turn(run, at, genai.OTHER)
        if run.birth is not None:
            _end(run.birth, at)
            run.birth = None
        run.turn = self._start(
            genai.TURN, at, run.child_context, {**_agent_attributes(event), genai.TURN_NUMBER: event.turn}
        )
        run.turn_context = set_span_in_context(run.turn, run.child_context)

    def _on_turn_end(self, event: events.TurnEnded, at: int) -> None:
        run = self._spans_by_run.get(event.run)
        if run is not None:
            self._end_turn(run, at, event.status)

    def _end_turn(self, run: RunSpans, at: int, status: str) -> None:
        for model_span in run.model_spans.values():
            _end(model_span.span, model_span.failed_at or at, status)
        for tool in run.tools.values():
            _end(tool, at, status)
        run.model_spans.clear()
        run.tools.clear()
        if run.turn is not None:
            run.turn.set_attribute(genai.STATUS, status)
            _end(run.turn, at, status)
            run.turn = run.turn_context = None

    # ---- models

    def _on_model_request(self, event: events.ModelAsked, at: int) -> None:
        run = self._open_spans(event, at)
        for step, previous in list(run.model_spans.items()):  # A failed attempt without a reported reason.
            if previous.failed_at is not None or step == event.step_id:
                _end(previous.span, previous.failed_at or at, genai.OTHER)
                del run.model_spans[step]
        model = genai.model_of(event.model)
        attributes: Attributes = {
            genai.OPERATION: genai.CHAT,
            genai.PROVIDER: model.provider,
            genai.REQUEST_MODEL: model.name,
            genai.CONVERSATION_ID: event.root,
            genai.STEP_ID: event.step_id,
            genai.ATTEMPT: event.attempt,
            **_agent_attributes(event),
        }
        if event.reserved_tokens:
            attributes[genai.RESERVED_TOKENS] = event.reserved_tokens
        name = f"{genai.CHAT} {model.name[:MAX_NAME]}"
        run.model_spans[event.step_id] = ModelSpan(
            self._start(name, at, run.turn_context or run.child_context, attributes, SpanKind.CLIENT),
        )

    def _on_message(self, event: events.MessageRecorded, at: int) -> None:
        model_span = self._pop_model_span(event, event.step_id)
        if model_span is None:
            return
        metadata = event.message.get("response_metadata") or {}
        attributes: Attributes = {}
        for name, value in (
            (genai.RESPONSE_MODEL, metadata.get("model_name") or metadata.get("model")),
            (genai.RESPONSE_ID, event.message.get("id")),
        ):
            if isinstance(value, str):
                attributes[name] = value[:MAX_NAME]
        reason = metadata.get("finish_reason") or metadata.get("stop_reason")
        if isinstance(reason, str):
            attributes[genai.FINISH_REASONS] = (reason[:MAX_NAME],)
        if event.usage is not None:
            attributes |= _usage_attributes(event.usage)
        model_span.span.set_attributes(attributes)
        _end(model_span.span, at)

    def _on_model_charge(self, event: events.ModelCharged, at: int) -> None:
        """Handle a failed request, or one outside the conversation; a provider that reports usage has answered."""
        run = self._spans_by_run.get(event.run)
        model_span = run.model_spans.get(event.step_id) if run is not None else None
        if model_span is None or run is None:
            return
        model_span.span.set_attributes(_usage_attributes(event.usage))
        if event.usage.tokens and not event.usage.estimated:
            del run.model_spans[event.step_id]
            _end(model_span.span, at)
        else:
            model_span.failed_at = at

    def _on_model_retry(self, event: events.ModelRetried, at: int) -> None:
        model_span = self._pop_model_span(event, event.step_id)
        if model_span is not None:
            status = _HTTP.search(event.reason)
            _end(model_span.span, model_span.failed_at or at, status[1] if status else genai.OTHER)

    def _pop_model_span(self, event: Event, step: str | None) -> ModelSpan | None:
        run = self._spans_by_run.get(event.run)
        return run.model_spans.pop(step, None) if run is not None and step is not None else None

    # ---- tools

    def _on_tool_start(self, event: events.ToolStarted, at: int) -> None:
        run, call = self._open_spans(event, at), event.call_id or ""
        if (previous := run.tools.pop(call, None)) is not None:
            _end(previous, at, genai.OTHER)
        run.tools[call] = self._tool(run, event, event.tool, at)
        run.tools[call].set_attribute(genai.STEP_ID, event.step_id)

    def _on_tool_end(self, event: events.ToolEnded, at: int) -> None:
        run = self._open_spans(event, at)
        span = run.tools.pop(event.call_id or "", None) or self._tool(run, event, event.tool, at)  # It never ran.
        span.set_attribute(genai.STATUS, event.status)
        match event.status:
            case "ok":
                _end(span, at)
            case "error":
                match = _RAISED.match(event.preview)
                _end(span, at, match[1] if match else genai.OTHER)
            case _:
                _end(span, at, event.status)

    def _tool(self, run: RunSpans, event: Event, tool: str, at: int) -> Span:
        attributes: Attributes = {
            genai.OPERATION: genai.EXECUTE_TOOL,
            genai.TOOL_NAME: tool[:MAX_NAME],
            genai.TOOL_TYPE: "function",
            **_agent_attributes(event),
        }
        if event.call_id:
            attributes[genai.TOOL_CALL_ID] = event.call_id
        return self._start(
            f"{genai.EXECUTE_TOOL} {tool[:MAX_NAME]}", at, run.turn_context or run.child_context, attributes
        )

    def _start(
        self, name: str, at: int, context: Context, attributes: Attributes, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        return self._tracer.start_span(name, context=context, kind=kind, attributes=attributes, start_time=at)


def _end(span: Span, at: int, error: str | None = None) -> None:
    """End a span; a cancelled one has `error.type`, but is no failure."""
    if error is not None and error not in (outcome.Status.COMPLETED, outcome.Status.NEEDS_INPUT):
        span.set_attribute(genai.ERROR_TYPE, error)
        if error != outcome.Status.CANCELLED:
            span.set_status(Status(StatusCode.ERROR))
    span.end(end_time=at)


def _agent_attributes(event: Event) -> Attributes:
    return {genai.AGENT_NAME: event.agent[:MAX_NAME], genai.AGENT_ID: event.run}


def _usage_attributes(usage: Usage) -> Attributes:
    """Return the usage attributes, without values of zero except input and output tokens."""
    attributes: Attributes = {genai.INPUT_TOKENS: usage.input_tokens, genai.OUTPUT_TOKENS: usage.output_tokens}
    if usage.cache_read_tokens:
        attributes[genai.CACHE_READ_TOKENS] = usage.cache_read_tokens
    if usage.usd:
        attributes[genai.USD] = usage.usd
    if usage.estimated:
        attributes[genai.ESTIMATED] = True
    return attributes


def _ns(at: datetime) -> int:
    elapsed = at - _EPOCH
    return ((elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds) * 1_000
