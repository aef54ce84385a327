"""Events are read back from a journal unchanged, or refused before they are written."""

from __future__ import annotations

import math
import typing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from ramet.core import events
from ramet.core.errors import InvalidValue
from ramet.core.events import (
    AnyEvent,
    ClampEvent,
    Event,
    Notice,
    PlanStep,
    RunEnded,
    StateChanged,
    ToolStarted,
    decode,
    encode,
    with_data,
)
from ramet.core.outcome import ErrorInfo, Result, Status, Usage
from ramet.core.safety import Vote

KINDS: tuple[type[Event], ...] = typing.get_args(AnyEvent)
WHOSE: dict[str, Any] = {"root": "run-00", "run": "run-01", "path": "main/a", "agent": "explore"}

text = st.text(st.characters(exclude_categories=["Cs"]))
counts = st.integers(0, 2**53)
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
times = st.datetimes(timezones=st.just(UTC) | st.integers(-14, 14).map(lambda h: timezone(timedelta(hours=h))))
usages = st.builds(
    Usage,
    model_calls=counts,
    tool_calls=counts,
    agents=counts,
    input_tokens=counts,
    output_tokens=counts,
    cache_read_tokens=counts,
    usd=numbers,
    estimated=st.booleans(),
)
errors = st.builds(ErrorInfo, type=text, message=text, scope=st.none() | text)
results = st.builds(
    Result,
    status=st.sampled_from(Status),
    value=plain,
    error=st.none() | errors,
    partial=text,
    usage=usages,
    usage_subtree=usages,
    artifacts=st.lists(text, max_size=3).map(tuple),
)
#: How to make a value of each type that a field has. A field of a new type needs its line here.
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: text,
    int: counts,
    float: numbers,
    float | None: st.none() | numbers,
    bool: st.booleans(),
    str | None: st.none() | text,
    datetime: times,
    datetime | None: st.none() | times,
    tuple[str, ...]: st.lists(text, max_size=3).map(tuple),
    tuple[PlanStep, ...]: st.lists(st.builds(PlanStep, text=text, status=text), max_size=3).map(tuple),
    tuple[Vote, ...]: st.lists(st.builds(Vote, voter=text, verdict=text, reason=text), max_size=3).map(tuple),
    tuple[int | dict[str, Any], ...]: st.lists(st.integers(0, 9) | st.just({"type": "human"}), max_size=3).map(tuple),
    dict[str, Any]: st.dictionaries(text, plain, max_size=3),
    dict[str, int | float]: st.dictionaries(text, counts | numbers, max_size=3),
    Usage: usages,
    Usage | None: st.none() | usages,
    ErrorInfo | None: st.none() | errors,
    Result: results,
}


def strategy_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    return st.builds(kind, **{name: VALUES[hint] for name, hint in typing.get_type_hints(kind).items()})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_an_event_is_read_back_unchanged(kind: type[Event], data: st.DataObject) -> None:
    """decode(encode(event)) equals the event and has its type, for every type and any content."""
    event = data.draw(strategy_of(kind))

    back = decode(encode(event))

    assert type(back) is kind
    assert back == event


@given(event=st.one_of(*map(strategy_of, KINDS)))
def test_an_event_is_one_line(event: Event) -> None:
    """An encoded event holds no line end, so that a reader gets one event per line."""
    line = encode(event)

    assert line.splitlines() == [line]


def test_every_event_of_the_module_is_in_the_vocabulary() -> None:
    """The union of events holds every event class of the module: an event that can be written can be read."""
    defined = {each for each in vars(events).values() if isinstance(each, type) and issubclass(each, Event)} - {Event}

    assert defined == set(KINDS)


def test_event_types_are_stable_names() -> None:
    """Tags of events are fixed: changing one makes old journals unreadable, so it is a decision."""
    assert sorted(str(kind.__struct_config__.tag) for kind in KINDS) == sorted(
        """agent_created approval_answered approval_asked budget_refused clamped clock_stepped command_run compacted
        endpoint_asked folder_lost forward_refused hook_failed intention_decided intention_recorded
        limit_paused limits_raised
        mail_delivered mail_pushed message_discarded message_recorded model_asked model_charged model_retried
        monitor_ended monitor_started moved_to_background notice
        pause_ended plan_updated policy_decided quota_reached
        request_answered result_reused run_ended run_looping run_paused run_resumed
        run_retried run_silent run_spawned sandbox_frozen sandbox_given_up sandbox_started state_changed
        state_committed sub_agent_reported text_delta
        threshold_crossed time_started
        time_stopped tool_ended tool_progressed tool_started tools_loaded turn_ended turn_started""".split()
    )


@pytest.mark.parametrize("kind", ["", "run_spawned ", "RunSpawned", "event", "from_the_future", "__class__"])
def test_an_unknown_type_is_refused(kind: str) -> None:
    """Events of a newer version are not misread as something else."""
    line = msgspec.json.encode({"type": kind, **WHOSE})

    with pytest.raises(InvalidValue):
        decode(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"null",
        b"[]",
        b"{}",
        b'"notice"',
        b"\xff",
        b"\xef\xbb\xbf{}",
        b'{"type":"notice"',
        b'{"type":"notice"}',
        b'{"type":null}',
        b'{"type":["notice"]}',
        b'{"type":"notice","type":"from_the_future","root":"r","run":"r","path":"p","agent":"a","text":""}',
        b'{"type":"notice","root":1,"run":"r","path":"p","agent":"a","text":""}',
        b'{"type":"notice","root":"r","run":"r","path":"p","agent":"a","text":"\\ud800"}',
        b'{"type":"notice","root":"r","run":"r","path":"p","agent":"a","text":""}{}',
        b'{"type":"notice","root":"r","run":"r","path":"p","agent":"a","text":"","depth":true}',
        b'{"type":"run_ended","root":"r","run":"r","path":"p","agent":"a","result":{"status":"great"}}',
        b'{"type":"clamped","root":"r","run":"r","path":"p","agent":"a","field":"x","asked":1e999,"given":1}',
        b'{"type":"tool_started","root":"r","run":"r","path":"p","agent":"a","tool":"t","step_id":"s","args":'
        + b'{"a":' * 100_000,
        "\ud800",
    ],
    ids=lambda line: repr(line)[:40],
)
def test_a_malformed_event_is_refused(line: bytes | str) -> None:
    """Malformed bytes raise InvalidValue with a short message."""
    with pytest.raises(InvalidValue) as refusal:
        decode(line)

    assert len(str(refusal.value)) < 500


@given(event=st.one_of(*map(strategy_of, KINDS)), cut=st.integers(1, 10**6))
def test_half_a_line_is_never_an_event(event: Event, cut: int) -> None:
    """A record that a crash cut off is refused, wherever the cut is."""
    line = encode(event)

    with pytest.raises(InvalidValue):
        decode(line[: -1 - cut % (len(line) - 1)])


@given(content=st.text(), args=st.dictionaries(st.text(), st.text(), max_size=3))
def test_any_text_of_a_model_can_be_recorded(content: str, args: dict[str, str]) -> None:
    """Half a surrogate pair, as cut emoji leave behind, is written as U+FFFD. Other characters stay unchanged."""
    event = ToolStarted(**WHOSE, tool="t", step_id=content, args={"said": content, **args})

    back = decode(encode(event))

    expected = content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert isinstance(back, ToolStarted)
    assert back.step_id == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_lacks_is_refused_when_written(value: float) -> None:
    """JSON has no NaN and no infinity: the error comes at the append, not when the journal is read."""
    with pytest.raises(InvalidValue):
        encode(ClampEvent(**WHOSE, field="memory_mb", asked=value, given=1.0))


@pytest.mark.parametrize(
    "fields",
    [
        {"value": [None]},
        {"value": None},
        {"error": ErrorInfo(type="E", message="m")},
        {"error": ErrorInfo(type="E", message="m", scope="main")},
    ],
)
def test_a_number_that_json_lacks_is_refused_beside_a_value(fields: dict[str, Any]) -> None:
    """The value of an end is not searched for such numbers, but its usage is, whatever else of the end is null."""
    result = Result(status=Status.COMPLETED, usage=Usage(usd=math.nan), **fields)

    with pytest.raises(InvalidValue):
        encode(RunEnded(**WHOSE, result=result))
    assert isinstance(decode(encode(RunEnded(**WHOSE, result=replace(result, usage=Usage())))), RunEnded)


@given(value=plain, printed=st.text())
@example(value=[1], printed="cut \ud83d")
def test_an_end_with_its_value_as_json_text_is_the_same_event(value: Any, printed: str) -> None:
    """The line is equal, also beside text that is not valid Unicode, and so is the event of a reader."""
    end = RunEnded(**WHOSE, result=Result(status=Status.COMPLETED, value=value, stdout=printed))
    text_end = RunEnded(**WHOSE, result=replace(end.result, value=msgspec.Raw(msgspec.json.encode(value))))

    assert encode(text_end) == encode(end)
    assert with_data(text_end) == end


def test_nan_inside_arguments_is_recorded_as_null() -> None:
    """NaN inside arguments becomes null, and the event can be read."""
    back = decode(encode(ToolStarted(**WHOSE, tool="t", step_id="s", args={"x": math.nan})))

    assert isinstance(back, ToolStarted)
    assert back.args == {"x": None}


@pytest.mark.parametrize("value", [object(), 1j, KINDS], ids=["object", "complex", "classes"])
def test_a_value_that_json_cannot_hold_is_refused_when_written(value: object) -> None:
    """An object that a hook puts into arguments raises InvalidValue."""
    with pytest.raises(InvalidValue):
        encode(ToolStarted(**WHOSE, tool="t", step_id="s", args={"x": value}))


def test_deep_nesting_is_refused_when_written() -> None:
    """Arguments of 100,000 levels raise InvalidValue instead of crashing the interpreter."""
    args: dict[str, Any] = {}
    for _ in range(100_000):
        args = {"a": args}

    with pytest.raises(InvalidValue):
        encode(ToolStarted(**WHOSE, tool="t", step_id="s", args=args))


def test_default_fields_are_not_written() -> None:
    """Fields at their default are left out, so that a token costs a short line."""
    assert encode(Notice(**WHOSE, text="hi")) == (
        b'{"type":"notice","root":"run-00","run":"run-01","path":"main/a","agent":"explore","text":"hi"}'
    )


def test_two_events_do_not_share_their_arguments() -> None:
    """An event's empty arguments are an object of its own."""
    first, second = (ToolStarted(**WHOSE, tool="t", step_id="s") for _ in range(2))

    first.args["x"] = 1

    assert second.args == {}


def test_events_cannot_be_changed() -> None:
    """A subscriber cannot change what the next subscriber reads."""
    event = StateChanged(**WHOSE, state="running")

    with pytest.raises(AttributeError):
        event.state = "ended"  # type: ignore[misc]  # the point of the test
