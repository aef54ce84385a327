"""Tests of `core/errors.py`: one tree of errors that a caller can act on, readable for any refused value."""

from __future__ import annotations

import inspect

import pytest

from ramet.core import errors
from ramet.core.errors import (
    BudgetExceeded,
    Denied,
    InvalidValue,
    MailRefused,
    MissingExtra,
    ModelFailed,
    NoToolsLeft,
    RametError,
    SpawnRefused,
    Unknown,
)

HUGE = "x" * 1_000_000


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


def nested_list(levels: int) -> list[object]:
    outer: list[object] = []
    for _ in range(levels):
        outer = [outer]
    return outer


def test_every_error_derives_from_ramet_error() -> None:
    """A handler of RametError catches every error of ramet."""
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]

    strangers = [each for each in classes if not issubclass(each, RametError)]

    assert len(classes) > 10
    assert strangers == []


def test_an_invalid_value_names_field_value_and_what_is_accepted() -> None:
    """A user corrects the call from the message alone; code reads the attributes."""
    refusal = InvalidValue("limits.tokens", -1, "a whole number")

    assert str(refusal) == "limits.tokens: -1 is not accepted; expected a whole number"
    assert (refusal.field, refusal.value, refusal.accepted) == ("limits.tokens", -1, "a whole number")
    assert isinstance(refusal, ValueError)


@pytest.mark.parametrize(
    "value",
    [HUGE, HUGE.encode(), [HUGE] * 3, 10**5_000, Unprintable(), nested_list(100_000), "\ud800"],
    ids=["text", "bytes", "list", "integer", "unprintable", "nested", "surrogate"],
)
def test_any_value_can_be_refused(value: object) -> None:
    """A hostile value neither breaks its refusal nor fills the log."""
    refusal = InvalidValue("name", value, "a name")

    assert refusal.value is value
    assert str(refusal).startswith("name: ")
    assert len(str(refusal)) < 500


@pytest.mark.parametrize(
    "refusal",
    [
        InvalidValue(HUGE, 1, "a known field"),
        Unknown("agent", HUGE, (HUGE, HUGE)),
        MailRefused(HUGE, "nobody has this name"),
        NoToolsLeft("explore", (HUGE,) * 100),
    ],
    ids=lambda refusal: type(refusal).__name__,
)
def test_long_names_are_cut_in_messages(refusal: RametError) -> None:
    """Models may choose names, and messages go back to models."""
    text = str(refusal)

    assert len(text) < 20_000


def test_an_unknown_name_is_shown_with_the_known_names() -> None:
    """The reader of the message can correct a misspelt name."""
    refusal = Unknown("tool", "Raed", ("Read", "Write"))

    assert str(refusal) == "unknown tool 'Raed'; known: Read, Write"
    assert isinstance(refusal, LookupError)


def test_an_unknown_name_without_known_names_says_so() -> None:
    """An empty list of names does not look like a cut message."""
    assert str(Unknown("team", "a")) == "unknown team 'a'; there are none"


def test_a_long_list_of_known_names_is_cut_visibly() -> None:
    """An ellipsis after twenty names shows that more exist."""
    refusal = Unknown("tool", "z", tuple(f"tool-{number}" for number in range(21)))

    assert str(refusal).endswith("tool-19, …")
    assert len(refusal.known) == 21


def test_a_refused_reservation_shows_exact_amounts_and_the_scope() -> None:
    """A model that reads 1e+06 twice cannot see the difference."""
    refusal = BudgetExceeded("tokens", asked=1_000_001, left=1_000_000, scope="main/a")

    assert str(refusal) == "budget of main/a: tokens asked 1000001, left 1000000"


def test_money_in_a_refusal_is_shown_without_binary_noise() -> None:
    """0.1 + 0.2 is shown as 0.3."""
    assert "asked 0.3," in str(BudgetExceeded("usd", asked=0.1 + 0.2, left=0.0, scope="main"))


@pytest.mark.parametrize(("free", "expected"), [(None, "no"), (0, "no; free now: 0"), (2.0, "no; free now: 2")])
def test_a_refused_spawn_says_what_is_free_if_it_is_known(free: float | None, expected: str) -> None:
    """ "Nothing is free" differs from "not known"."""
    assert str(SpawnRefused("children", "no", free=free)) == f"spawn refused (children): {expected}"


def test_a_missing_extra_shows_the_command_that_installs_it() -> None:
    """The user can paste the command into a shell."""
    refusal = MissingExtra("the model openai:gpt", "openai")

    assert "pip install 'ramet[openai]'" in str(refusal)
    assert isinstance(refusal, ImportError)


def test_a_models_failure_names_the_model_and_the_status() -> None:
    """The error also says whether another try may help."""
    failure = ModelFailed("openai:gpt", "overloaded", status=529, retryable=True, retry_after_s=2.0)

    assert str(failure) == "openai:gpt: overloaded (HTTP 529)"
    assert (failure.retryable, failure.retry_after_s) == (True, 2.0)


def test_a_denial_names_the_tool_and_the_reason() -> None:
    """The reader learns which gate denied the call."""
    assert str(Denied("Bash", "not in this folder")) == "Bash denied: not in this folder"
