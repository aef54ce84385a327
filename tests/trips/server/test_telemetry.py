"""Spans of real trees, in the SDK's memory: their order, their times, and no text of any conversation."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from ramet.concurrency.clock import FakeClock
from ramet.core import events
from ramet.core.events import Event
from ramet.core.limits import Limits
from ramet.core.outcome import Result, Status, Usage
from ramet.host.journal.recorder import Recorder
from ramet.host.observability.telemetry import Telemetry
from ramet.host.session import Session
from ramet.models.scripted.dialogue import Fail, Hang, Say, Script
from ramet.models.scripted.model import Call, ScriptedModel
from tests.support.context import run_info
from tests.support.waiting import eventually
from tests.trips.kits.sessions import (
    Gate,
    background_call,
    is_tree_idle,
    of_kind,
    open_tree_of,
    run_of,
    session_events,
    specialist_call,
)

ROOT, CHILD = run_info(), run_info(1, path="main/child", depth=1)
SECRET_WORDS = ("the prompt", "the question", "the find", "the answer", "the argument", "the result")


class RecordedSpans:
    """A tracer provider, and the spans that have ended."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self.exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.telemetry = Telemetry(self.provider)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def watch(self, session: Session) -> Telemetry:
        """Attach telemetry to a session's tree."""
        assert self.telemetry.attach(open_tree_of(session).recorder) is not None
        return self.telemetry

    def one(self, name: str, **attributes: object) -> ReadableSpan:
        """Return the only span with that name and these attributes (two underscores stand for a dot)."""
        wanted_attributes = {key.replace("__", "."): value for key, value in attributes.items()}
        [span] = [span for span in self.named(name) if wanted_attributes.items() <= attributes_of(span).items()]
        return span

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def tree(self) -> dict[str, Any]:
        """Return the names of nested spans, in the order in which they began."""

        def below(parent: int | None) -> list[Any]:
            children = [s for s in self.spans if (s.parent.span_id if s.parent else None) == parent]
            children.sort(key=lambda span: (span.start_time or 0, span.context.span_id if span.context else 0))
            return [(span.name, below(span.context.span_id)) for span in children if span.context is not None]

        tree = below(None)
        assert len(tree) == 1, f"one root, not {[name for name, _ in tree]}"
        return {"root": tree[0]}


@pytest.fixture
def recorded_spans() -> Iterator[RecordedSpans]:
    spans = RecordedSpans()
    yield spans
    spans.provider.shutdown()


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def below(spans: RecordedSpans, span: ReadableSpan) -> list[str]:
    """Return the names of the spans directly below a span, in order of name."""
    assert span.context is not None
    return sorted(s.name for s in spans.spans if s.parent is not None and s.parent.span_id == span.context.span_id)


@tool
def look(subject: str) -> str:
    """Look at something."""
    if subject == "nothing":
        raise ValueError("the result is an error")
    return "the result"


def record_tree(spans: RecordedSpans, *tree_events: Event) -> None:
    """Record a tree with these events, one per second."""
    clock, telemetry = FakeClock(), spans.telemetry
    recorder = Recorder(clock)
    telemetry.attach(recorder)
    for event in tree_events:
        recorder.append(event)
        clock._elapsed += 1
    recorder.close()


# --- trees


async def test_a_tree_of_runs_is_a_tree_of_spans(recorded_spans: RecordedSpans) -> None:
    """A child is below the call that spawned it. Turns, tool calls and model calls are below their runs."""
    script: Script = {
        "dig deep": [Call("look", {"subject": "the argument"}), "the find"],
        "": [specialist_call("dig deep: the prompt", "digger"), "the answer"],
    }
    async with Session(ScriptedModel(script), [look]) as session:
        recorded_spans.watch(session)
        await session.ask("the question")

    root = recorded_spans.one("invoke_agent main")
    assert root.parent is None
    assert below(recorded_spans, root) == ["turn"]
    turn = recorded_spans.one("turn", ramet__turn=1, gen_ai__agent__id=session.id)
    assert below(recorded_spans, turn) == ["chat scripted", "chat scripted", "execute_tool Agent"]
    assert below(recorded_spans, recorded_spans.one("execute_tool Agent")) == ["invoke_agent general-purpose"]
    child = recorded_spans.one("invoke_agent general-purpose")
    assert below(recorded_spans, child) == ["create_agent general-purpose", "turn"]
    own_turn = recorded_spans.one("turn", gen_ai__agent__name="general-purpose")
    assert below(recorded_spans, own_turn) == ["chat scripted", "chat scripted", "execute_tool look"]
    assert len(recorded_spans.spans) == 11
    assert len({span.context.trace_id for span in recorded_spans.spans if span.context}) == 1
    assert all((span.end_time or 0) >= (span.start_time or 0) > 0 for span in recorded_spans.spans)


async def test_attributes_follow_the_conventions_of_opentelemetry(recorded_spans: RecordedSpans) -> None:
    """The values of the attributes are those of the events."""
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18, "input_token_details": {"cache_read": 3}}
    script: Script = [Call("look", {"subject": "x"}, id="call-7"), Say("the answer", usage=usage)]  # type: ignore[arg-type]  # as a provider says it
    async with Session(ScriptedModel(script), [look], session_id="conversation-1") as session:
        recorded_spans.watch(session)
        await session.ask("the question")

    tree_events = session_events(session)
    run = attributes_of(recorded_spans.one("invoke_agent main"))
    assert run["gen_ai.operation.name"] == "invoke_agent"
    assert (run["gen_ai.agent.name"], run["gen_ai.agent.id"]) == ("main", session.id)
    assert (run["gen_ai.conversation.id"], run["gen_ai.request.model"]) == ("conversation-1", "scripted")
    assert (run["ramet.root.id"], run["ramet.path"], run["ramet.depth"]) == (session.id, "main", 0)
    assert (run["ramet.status"], run["gen_ai.usage.output_tokens"]) == ("completed", session.usage.output_tokens)

    chat = recorded_spans.one("chat scripted", gen_ai__usage__input_tokens=11)
    assert chat.kind is SpanKind.CLIENT
    assert attributes_of(chat)["gen_ai.operation.name"] == "chat"
    assert (attributes_of(chat)["gen_ai.provider.name"], attributes_of(chat)["gen_ai.request.model"]) == (
        "scripted",
        "scripted",
    )
    assert attributes_of(chat)["gen_ai.response.model"] == "scripted"
    assert (
        attributes_of(chat)["gen_ai.usage.output_tokens"],
        attributes_of(chat)["gen_ai.usage.cache_read.input_tokens"],
    ) == (7, 3)
    assert chat.status.status_code is StatusCode.UNSET

    tool_span = recorded_spans.one("execute_tool look")
    assert tool_span.kind is SpanKind.INTERNAL
    assert attributes_of(tool_span)["gen_ai.operation.name"] == "execute_tool"
    assert (attributes_of(tool_span)["gen_ai.tool.name"], attributes_of(tool_span)["gen_ai.tool.call.id"]) == (
        "look",
        "call-7",
    )
    assert (attributes_of(tool_span)["gen_ai.tool.type"], attributes_of(tool_span)["ramet.status"]) == (
        "function",
        "ok",
    )
    [tool_start] = of_kind(tree_events, events.ToolStarted)
    [tool_end] = of_kind(tree_events, events.ToolEnded)
    assert tool_start.at is not None
    assert tool_end.at is not None
    times = [datetime.fromtimestamp(0, UTC) + timedelta(microseconds=(at or 0) // 1_000) for at in
             (tool_span.start_time, tool_span.end_time)]  # fmt: skip
    assert times == [tool_start.at, tool_end.at]


@pytest.mark.parametrize("is_told", [True, False])
async def test_estimated_usage_is_marked_in_its_spans(recorded_spans: RecordedSpans, is_told: bool) -> None:
    """The mark is on the model call and on every span around it. Reported usage has no mark."""
    model = ScriptedModel(["ok"]) if is_told else GenericFakeChatModel(messages=iter([AIMessage("ok")]))
    async with Session(model, limits=Limits(tokens=50_000)) as session:
        recorded_spans.watch(session)
        await session.ask("the question")

    spans = [span for span in recorded_spans.spans if "gen_ai.usage.output_tokens" in attributes_of(span)]
    assert spans
    assert {attributes_of(span).get("ramet.usage.estimated") for span in spans} == {None if is_told else True}


async def test_spans_contain_no_text_of_a_conversation(recorded_spans: RecordedSpans) -> None:
    """No prompt, reply, argument, result or mail is in a name, an attribute, an event or a status."""
    script: Script = {
        "dig": [Call("look", {"subject": "the argument"}), Call("look", {"subject": "nothing"}), "the find"],
        "": [
            [specialist_call("dig: the prompt", "one"), background_call("dig: the prompt", "two")],
            "the answer",
            "the answer",
        ],
    }
    async with Session(ScriptedModel(script), [look], system_prompt="the prompt") as session:
        recorded_spans.watch(session)
        await session.ask("the question")
        await eventually(lambda: is_tree_idle(session))

    everything = "\n".join(span.to_json() for span in recorded_spans.spans)
    for words in SECRET_WORDS:
        assert words not in everything
    assert len(recorded_spans.spans) > 15


async def test_a_failed_tool_call_marks_only_its_own_span(recorded_spans: RecordedSpans) -> None:
    """The span has the exception's type as `error.type`. A call of an unknown tool has a span, too."""
    script: Script = [Call("look", {"subject": "nothing"}), Call("no_such_tool", {}), "done"]
    async with Session(ScriptedModel(script), [look]) as session:
        recorded_spans.watch(session)
        await session.ask("Go.")

    failed_span, unknown = recorded_spans.one("execute_tool look"), recorded_spans.one("execute_tool no_such_tool")
    assert (failed_span.status.status_code, attributes_of(failed_span)["error.type"]) == (
        StatusCode.ERROR,
        "ValueError",
    )
    assert failed_span.status.description is None
    assert (unknown.status.status_code, attributes_of(unknown)["error.type"]) == (StatusCode.ERROR, "_OTHER")
    for name in ("turn", "invoke_agent main"):
        assert recorded_spans.one(name).status.status_code is StatusCode.UNSET


async def test_each_attempt_of_a_model_call_is_a_span(recorded_spans: RecordedSpans) -> None:
    """A failed attempt has the status of the provider's answer, and the next span begins with the retry."""
    async with Session(ScriptedModel([Fail(529, retry_after_s=0), "done"])) as session:
        recorded_spans.watch(session)
        await session.ask("Go.")

    first, second = sorted(recorded_spans.named("chat scripted"), key=lambda span: attributes_of(span)["ramet.attempt"])
    assert (first.status.status_code, attributes_of(first)["error.type"]) == (StatusCode.ERROR, "529")
    assert second.status.status_code is StatusCode.UNSET
    assert (second.start_time or 0) >= (first.end_time or 0)
    assert recorded_spans.one("invoke_agent main").status.status_code is StatusCode.UNSET


async def test_a_failed_model_call_marks_its_turn(recorded_spans: RecordedSpans) -> None:
    """Model call and turn end as errors. The session continues, and the next turn is fine."""
    async with Session(ScriptedModel([Fail("no such model"), "done"])) as session:
        recorded_spans.watch(session)
        await session.ask("Go.")
        await session.ask("Again.")

    first, second = sorted(recorded_spans.named("turn"), key=lambda span: attributes_of(span)["ramet.turn"])
    assert (first.status.status_code, attributes_of(first)["ramet.status"]) == (StatusCode.ERROR, "failed")
    assert second.status.status_code is StatusCode.UNSET
    chats = sorted(recorded_spans.named("chat scripted"), key=lambda span: span.start_time or 0)
    assert [span.status.status_code for span in chats] == [StatusCode.ERROR, StatusCode.UNSET]


async def test_a_cancelled_tree_leaves_no_span_open(recorded_spans: RecordedSpans) -> None:
    """Every span ends as cancelled and not as an error: a model that hangs, a tool that waits, and both children."""
    gate = Gate()
    script: Script = {
        "first job": [Hang(3)],
        "second job": [Call("gate", {})],
        "": [[background_call("first job", "one"), background_call("second job", "two"), Call("gate", {})]],
    }
    async with Session(ScriptedModel(script), [gate.tool]) as session:
        recorded_spans.watch(session)
        asking = asyncio.create_task(session.ask("Go."))
        await eventually(lambda: gate.calls == 2 and len(of_kind(session_events(session), events.ModelAsked)) == 3)
        await session.cancel()
        await asking
        span_count = len(recorded_spans.spans)

    assert len(recorded_spans.spans) == span_count, "closing found nothing open"
    names = [span.name for span in recorded_spans.spans]
    assert sorted(names) == sorted(
        ["invoke_agent main"]
        + ["invoke_agent general-purpose", "create_agent general-purpose"] * 2
        + ["turn"] * 3
        + ["chat scripted"] * 3
        + ["execute_tool Agent"] * 2
        + ["execute_tool gate"] * 2
    )
    for span in (*recorded_spans.named("invoke_agent general-purpose"), *recorded_spans.named("execute_tool gate")):
        assert (attributes_of(span)["ramet.status"], attributes_of(span)["error.type"], span.status.status_code) == (
            "cancelled",
            "cancelled",
            StatusCode.UNSET,
        ), span.name


async def test_a_background_child_is_below_its_call_and_outlives_it(recorded_spans: RecordedSpans) -> None:
    """The child's notice wakes the parent for a second turn."""
    gate = Gate()
    script: Script = {"dig": [Call("gate", {}), "found"], "": [background_call("dig", "digger"), "started", "done"]}
    async with Session(ScriptedModel(script), [gate.tool]) as session:
        recorded_spans.watch(session)
        await session.ask("Go.")
        gate.open.set()
        await eventually(
            lambda: is_tree_idle(session) and len(of_kind(session_events(session), events.TurnEnded, "main")) == 2
        )

    call, child = recorded_spans.one("execute_tool Agent"), recorded_spans.one("invoke_agent general-purpose")
    assert child.parent is not None
    assert call.context is not None
    assert child.parent.span_id == call.context.span_id
    assert (child.end_time or 0) > (call.end_time or 0)
    assert attributes_of(child)["ramet.background"] is True
    turns = [
        attributes_of(span)["ramet.turn"]
        for span in recorded_spans.named("turn")
        if attributes_of(span)["gen_ai.agent.name"] == "main"
    ]
    assert sorted(turns) == [1, 2]


async def test_a_woken_agent_has_a_second_span(recorded_spans: RecordedSpans) -> None:
    """The second span is below the same call as the first."""
    script: Script = {
        "dig": ["found", "found more"],
        "": [
            specialist_call("dig", "digger"),
            Call("SendMessage", {"to": "digger", "message": "more"}),
            "waiting",
            "done",
        ],
    }
    async with Session(ScriptedModel(script)) as session:
        recorded_spans.watch(session)
        await session.ask("Go.")
        await eventually(lambda: len(of_kind(session_events(session), events.RunEnded, "main/digger")) == 2)
        await eventually(lambda: is_tree_idle(session))

    first, second = sorted(recorded_spans.named("invoke_agent general-purpose"), key=lambda span: span.start_time or 0)
    assert first.parent == second.parent
    assert "ramet.resumed" not in attributes_of(first)
    assert attributes_of(second)["ramet.resumed"] is True
    assert below(recorded_spans, second) == ["turn"]


async def test_a_budget_refusal_is_an_event_of_a_span(recorded_spans: RecordedSpans) -> None:
    """The event has the resource, and no text of the conversation."""
    script: Script = [
        Call("look", {"subject": "the argument"}),
        Call("look", {"subject": "the argument"}),
        "the answer",
    ]
    async with Session(ScriptedModel(script), [look], limits=Limits(tool_calls=1)) as session:
        recorded_spans.watch(session)
        await session.ask("Go.")

    noted = [event for event in recorded_spans.one("turn").events if event.name == "ramet.budget_refused"]
    assert len(noted) == len(of_kind(session_events(session), events.BudgetRefused)) > 0
    assert dict(noted[0].attributes or {})["ramet.resource"] == "tool_calls"


# --- where a tree begins, and what is below it elsewhere


async def test_a_tree_is_below_the_current_span_of_its_caller(
    recorded_spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web server's span for a request wins over the trace of the process."""
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    tracer = recorded_spans.provider.get_tracer("a server")
    with tracer.start_as_current_span("POST /ask") as request:
        async with Session(ScriptedModel(["done"])) as session:
            recorded_spans.watch(session)
            await session.ask("Go.")

    run = recorded_spans.one("invoke_agent main")
    assert run.parent is not None
    assert run.parent.span_id == request.get_span_context().span_id


def test_a_tree_is_below_the_span_of_traceparent(
    recorded_spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable comes from the process that started this one. An invalid value is ignored."""
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    record_tree(recorded_spans, events.RunSpawned(**ROOT.stamp, name="main"))
    [span] = recorded_spans.spans
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == (
        "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
    )

    recorded_spans.exporter.clear()
    monkeypatch.setenv("TRACEPARENT", "a lie")
    record_tree(recorded_spans, events.RunSpawned(**ROOT.stamp, name="main"))
    assert recorded_spans.spans[0].parent is None


async def test_traceparent_returns_the_header_of_a_run(recorded_spans: RecordedSpans) -> None:
    """The W3C header exists from the run's spawn on. It is empty for an unknown run, and after the tree has closed."""
    async with Session(ScriptedModel({"dig": ["found"], "": [specialist_call("dig", "digger"), "done"]})) as session:
        telemetry = recorded_spans.watch(session)
        await session.ask("Go.")
        child = run_of(session, "digger").info.id
        headers = [telemetry.traceparent(run) for run in (session.id, child)]
        assert telemetry.traceparent("run-unknown") == ""

    for header, name in zip(headers, ("invoke_agent main", "invoke_agent general-purpose"), strict=True):
        context = recorded_spans.one(name).context
        assert context is not None
        assert header[:-2] == f"00-{context.trace_id:032x}-{context.span_id:016x}-"
        assert int(header[-2:], 16) & 1, "it is sampled"
    assert telemetry.traceparent(session.id) == ""


def test_traceparent_marks_an_unsampled_run() -> None:
    """The process that continues the trace does not record the run either."""
    provider = TracerProvider(sampler=ALWAYS_OFF)
    telemetry, recorder = Telemetry(provider), Recorder(FakeClock())
    telemetry.attach(recorder)
    recorder.append(events.RunSpawned(**ROOT.stamp, name="main"))

    assert not int(telemetry.traceparent(ROOT.id)[-2:], 16) & 1
    recorder.close()
    provider.shutdown()


# --- trees that are not whole


def test_a_resumed_tree_has_spans(recorded_spans: RecordedSpans) -> None:
    """Another process spawned the run, so this one has not seen its spawn event."""
    record_tree(
        recorded_spans,
        events.RunResumed(**ROOT.stamp, turn=2),
        events.TurnStarted(**ROOT.stamp, turn=2),
        events.ToolStarted(**ROOT.stamp, tool="look", step_id="s", call_id="c"),
        events.ToolEnded(**ROOT.stamp, tool="look", status="ok", call_id="c"),
        events.TurnEnded(**ROOT.stamp, turn=2, status="completed"),
    )

    assert recorded_spans.tree() == {"root": ("invoke_agent main", [("turn", [("execute_tool look", [])])])}
    assert attributes_of(recorded_spans.one("invoke_agent main"))["ramet.resumed"] is True


def test_closing_ends_open_spans_at_the_time_of_the_last_event(recorded_spans: RecordedSpans) -> None:
    """The innermost span ends first."""
    record_tree(
        recorded_spans,
        events.RunSpawned(**ROOT.stamp, name="main"),
        events.TurnStarted(**ROOT.stamp, turn=1),
        events.ModelAsked(**ROOT.stamp, step_id="s-1", model="anthropic:claude-x"),
        events.ToolStarted(**ROOT.stamp, tool="look", step_id="s-2", call_id="c"),
        events.RunSpawned(**CHILD.stamp, name="child"),
    )

    names = ["create_agent main", "invoke_agent main", "chat claude-x", "execute_tool look", "turn"]
    assert [span.name for span in recorded_spans.spans] == [*names, "invoke_agent main"]
    assert {span.end_time for span in recorded_spans.spans} == {1_767_225_604 * 10**9}
    assert attributes_of(recorded_spans.one("chat claude-x"))["gen_ai.provider.name"] == "anthropic"


def test_a_failed_model_call_ends_with_its_retry_event(recorded_spans: RecordedSpans) -> None:
    """The charge comes before the reason of the failure. A model call without a reply message is no error."""
    request: dict[str, Any] = {"step_id": "s-1", "model": "openai:gpt-x"}
    record_tree(
        recorded_spans,
        events.RunSpawned(**ROOT.stamp, name="main"),
        events.ModelAsked(**ROOT.stamp, **request),
        events.ModelCharged(**ROOT.stamp, step_id="s-1", usage=Usage(model_calls=1)),
        events.ModelRetried(**ROOT.stamp, **request, reason="it is busy (HTTP 503)", attempt=1),
        events.ModelAsked(**ROOT.stamp, **request, attempt=2),
        events.ModelCharged(**ROOT.stamp, step_id="s-1", usage=Usage(model_calls=1, input_tokens=5, output_tokens=2)),
        events.RunEnded(**ROOT.stamp, result=Result(status=Status.COMPLETED, value="x")),
    )

    first, second, run = recorded_spans.spans
    start_s = 1_767_225_600
    assert (first.start_time, first.end_time) == ((start_s + 1) * 10**9, (start_s + 2) * 10**9)
    assert attributes_of(first)["error.type"] == "503"
    assert (attributes_of(second)["gen_ai.usage.input_tokens"], second.status.status_code) == (5, StatusCode.UNSET)
    assert run.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (Status.FAILED, StatusCode.ERROR, "failed"),
        (Status.TIMEOUT, StatusCode.ERROR, "timeout"),
        (Status.OOM, StatusCode.ERROR, "oom"),
        (Status.CANCELLED, StatusCode.UNSET, "cancelled"),
        (Status.NEEDS_INPUT, StatusCode.UNSET, None),
    ],
)
def test_the_status_of_a_run_decides_whether_its_span_is_an_error(
    recorded_spans: RecordedSpans, status: Status, code: StatusCode, reason: str | None
) -> None:
    """Failed, timeout and oom are errors. Cancelled and needs_input are not."""
    record_tree(
        recorded_spans,
        events.RunSpawned(**ROOT.stamp, name="main"),
        events.RunEnded(**ROOT.stamp, result=Result(status=status)),
    )

    [span] = recorded_spans.spans
    assert (span.status.status_code, attributes_of(span)["ramet.status"]) == (code, str(status))
    if reason is not None:
        assert attributes_of(span)["error.type"] == reason


def test_a_failing_listener_does_not_harm_the_journal(
    recorded_spans: RecordedSpans, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is logged once, and every event is recorded."""
    from ramet.host.observability.spans import TreeSpans

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(TreeSpans, "on_event", broken)
    recorder = Recorder(FakeClock())
    recorded_spans.telemetry.attach(recorder)
    with caplog.at_level(logging.ERROR):
        for number in range(3):
            recorder.append(events.TurnStarted(**ROOT.stamp, turn=number))
    recorder.close()

    assert len(recorder.recent_events) == 3
    assert [record.message for record in caplog.records].count(
        "a listener failed; the tree continues, and the listener misses this event"
    ) == 1


# --- what it costs where nobody looks


def test_without_an_sdk_nothing_is_attached_or_imported(tmp_path: Path) -> None:
    """A process without an SDK has no listener, does not import OpenTelemetry, and gets an empty header."""
    program = textwrap.dedent(
        """
        import sys
        from ramet.concurrency.clock import SystemClock
        from ramet.host.journal.recorder import Recorder
        from ramet.host.observability.telemetry import Telemetry

        recorder, telemetry = Recorder(SystemClock()), Telemetry()
        assert telemetry.attach(recorder) is None
        assert recorder._readers == []
        assert telemetry.traceparent("run-1") == ""
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
        import opentelemetry.trace
        assert telemetry.attach(recorder) is None, "the API alone shows nothing"
        """
    )
    process_result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert (process_result.returncode, process_result.stdout, process_result.stderr) == (0, "", "")


def test_the_global_tracer_provider_is_used(tmp_path: Path) -> None:
    """A user only calls `set_tracer_provider`."""
    program = textwrap.dedent(
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from ramet.concurrency.clock import SystemClock
        from ramet.core.events import RunSpawned
        from ramet.host.journal.recorder import Recorder
        from ramet.host.observability.telemetry import Telemetry

        exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        recorder, telemetry = Recorder(SystemClock()), Telemetry()
        trace.set_tracer_provider(provider)
        telemetry.attach(recorder)
        recorder.append(RunSpawned(root="r", run="r", path="main", agent="main", name="main"))
        recorder.close()
        print(*(span.name for span in exporter.get_finished_spans()), sep=", ")
        """
    )
    process_result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert (process_result.returncode, process_result.stdout, process_result.stderr) == (0, "invoke_agent main\n", "")


async def test_spans_are_complete_with_a_journal(recorded_spans: RecordedSpans, tmp_path: Path) -> None:
    """Events reach telemetry once they are durable, with the last event of a tree."""
    script: Script = {"dig": ["found"], "": [specialist_call("dig", "digger"), "done"]}
    async with Session(ScriptedModel(script), cwd=tmp_path) as session:
        telemetry = recorded_spans.watch(session)
        await session.ask("Go.")
        assert telemetry.traceparent(run_of(session, "digger").info.id)

    assert len(recorded_spans.spans) == 9
    for name in ("invoke_agent main", "invoke_agent general-purpose"):
        assert attributes_of(recorded_spans.one(name))["ramet.status"] == "completed"
        assert recorded_spans.one(name).status.status_code is StatusCode.UNSET
