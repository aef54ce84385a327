"""Tests of errors on a channel: ramet's own keep their class, others are sent by name."""

from __future__ import annotations

import inspect
import sys

import msgspec
import pytest

from ramet.core import errors
from ramet.core.errors import RametError
from ramet.core.outcome import ErrorInfo
from ramet.wire.error_codec import MAX_MESSAGE, decode_error, encode_error

ERROR_EXAMPLES: list[RametError] = [
    errors.Aborted("stopped"),
    errors.BudgetExceeded("tokens", asked=5.0, left=1.5, scope="main/x"),
    errors.Bug("ours"),
    errors.BusyError("in a turn"),
    errors.Conflict("schedule", "nightly", expected=1, found=2),
    errors.Damaged("checkpoint", "/x", "cut short"),
    errors.DamagedTree("run-1", "/x/journal.db", "it is no event", cursor=7),
    errors.DefinitionMissing("model", "scripted"),
    errors.Expired("run-1", "2026-11-22T08:00:00Z", 60.0),
    errors.McpServerFailed("calc", "it ended"),
    errors.McpPackageFailed("calc@1", "it has no wheel"),
    errors.MergeConflict("state", "notes/main", ("a", "b"), expected=1, found=2),
    errors.UnsavedChanges(("a",), "two keys are not committed", "commit() them"),
    errors.AgentNotResolved("main@0", "capability", "math", "is gone"),
    errors.NeedsInput("which one?", token="run-1"),
    errors.TaskFailed("no data", task="solve", status="failed", run="run-1"),
    errors.Denied("shell", "a hook said no"),
    errors.Gone("it ended"),
    errors.InvalidValue("depth", 5, "3"),
    errors.IsolationUnavailable("L2", "L0", ("userns",), "enable it"),
    errors.MailRefused("x", "it is a function"),
    errors.MissingExtra("models", "openai"),
    errors.MissingValue("name", "text"),
    errors.ModelFailed("m", "no answer", status=500, retryable=True, retry_after_s=1.0),
    errors.NoToolsLeft("a", ("x", "y")),
    errors.NotShippable("result", "it is a lock", "return data"),
    errors.NotYours("agent", "a-1"),
    errors.OutputInvalid("no JSON", tries=3),
    errors.OwnedElsewhere("main-1", "blue", "http://10.0.0.7:8470"),
    errors.OutputTooLarge("artifacts", size=5, limit=4),
    errors.OverCapacity("crew", "memory_mb", asked=512.0, room={"agents": 3.0, "memory_mb": 128.0}),
    errors.ProtocolError("a frame"),
    errors.RametError("anything"),
    errors.SandboxFailed("bwrap"),
    errors.PolicyAdapterFailed("policy adapter house rules", "no answer"),
    errors.SpawnRefused("depth", "no level below", free=0),
    errors.SpawnRefused("runs", "too many"),
    errors.StepFailed("review", status="failed", path="main/review", reason="no answer"),
    errors.StepsExceeded("graph", node="review", max_steps=3),
    errors.StoreFailed("journal.db", "the disk is full"),
    errors.StoreInUse("journal.db", "pid 1"),
    errors.Unknown("agent", "x", ("a", "b")),
]


def send_error(error: BaseException) -> RametError:
    """Return the error as the other side rebuilds it from JSON."""
    info, fields = encode_error(error)
    encoded = msgspec.json.encode([info, fields])
    return decode_error(*msgspec.json.decode(encoded, type=tuple[ErrorInfo, dict[str, object]]))


def test_every_error_class_has_an_example() -> None:
    """A new class of errors needs an example here and an entry in the table."""
    classes = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__}

    assert {type(error) for error in ERROR_EXAMPLES} == classes


@pytest.mark.parametrize("error", ERROR_EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_of_ramet_keeps_its_class_and_attributes(error: RametError) -> None:
    """The message and the attributes arrive equal."""
    arrived_value = send_error(error)

    assert type(arrived_value) is type(error)
    assert str(arrived_value) == str(error)
    assert vars(arrived_value) == vars(error)


def test_another_error_is_sent_by_name() -> None:
    """The receiver does not look for the class of a foreign error."""
    arrived_value = send_error(ZeroDivisionError("by nought"))

    assert type(arrived_value) is RametError
    assert str(arrived_value) == "ZeroDivisionError: by nought"


def test_a_subclass_arrives_as_its_class_of_ramet() -> None:
    """A handler of the base class catches the error that arrives."""

    class Refused(errors.SpawnRefused):
        """Subclass in a module that the other side does not have."""

    assert type(send_error(Refused("depth", "no"))) is errors.SpawnRefused


@pytest.mark.parametrize(
    "fields",
    [{}, {"limit": 5, "reason": "x", "free": None}, {"limit": "x"}, {"limit": "x", "reason": "y", "free": "z"}],
)
def test_fields_of_wrong_types_make_a_plain_error(fields: dict[str, object]) -> None:
    """An error never arrives with a field of a wrong type."""
    error = decode_error(ErrorInfo(type="SpawnRefused", message="no"), fields)

    assert type(error) is RametError
    assert str(error) == "SpawnRefused: no"


class Hostile(Exception):
    """Exception whose methods fail or return wrong types."""

    def __init__(self, text: object) -> None:
        self.text = text

    def __str__(self) -> str:
        if isinstance(self.text, BaseException):
            raise self.text
        return self.text  # type: ignore[return-value]


class Text(str):
    """String whose slicing ends the process."""

    def __getitem__(self, _: object) -> str:
        sys.exit(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SystemExit(1), "(its message cannot be read: SystemExit)"),
        (KeyboardInterrupt(), "(its message cannot be read: KeyboardInterrupt)"),
        (5, "(its message cannot be read: TypeError)"),
        (Text("text"), "text"),
        ("\ud800", "\\ud800"),
        ("x" * 10**7, "x" * MAX_MESSAGE),
    ],
)
def test_an_error_is_encoded_whatever_its_methods_do(text: object, message: str) -> None:
    """The message is bounded, and valid Unicode."""
    info, fields = encode_error(Hostile(text))

    assert (info.type, info.message, fields) == ("Hostile", message, {})
    assert len(msgspec.json.encode(info)) < 3 * MAX_MESSAGE


def test_attributes_are_bounded_too() -> None:
    """Long names are cut, long lists end after 100 items, and any object is accepted as a value."""
    many = tuple("n" * 10_000 for _ in range(1_000))
    error = errors.Unknown("agent", "x", many)
    error.kind = "k" * 10**6
    arrived_value = send_error(error)

    assert isinstance(arrived_value, errors.Unknown)
    assert (len(arrived_value.kind), len(arrived_value.known)) == (MAX_MESSAGE, 100)
    assert isinstance(send_error(errors.InvalidValue("f", object(), "text")), errors.InvalidValue)


def test_a_long_name_of_a_type_is_cut() -> None:
    """A guest chooses the names of its classes."""
    assert len(str(decode_error(ErrorInfo(type="E" * 10**6, message="m" * 10**6), {}))) < MAX_MESSAGE + 300
