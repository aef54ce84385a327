"""core/errors.py: one tree of refusals that a caller can act on, readable whatever was refused."""

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


def nested(levels: int) -> list[object]:
    outer: list[object] = []
    for _ in range(levels):
        outer = [outer]
    return outer


def test_every_error_has_one_root() -> None:
    """Whoever catches RametError has caught everything that ramet refuses or reports."""
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each.__module__ == errors.__name__]

    strangers = [each for each in classes if not issubclass(each, RametError)]

    assert len(classes) > 10
    assert strangers == []


def test_an_invalid_value_names_field_value_and_what_is_accepted() -> None:
    """The message alone lets a user correct the call; the parts are there for code."""
    refusal = InvalidValue("limits.tokens", -1, "a whole number")

    assert str(refusal) == "limits.tokens: -1 is not accepted; expected a whole number"
    assert (refusal.field, refusal.value, refusal.accepted) == ("limits.tokens", -1, "a whole number")
    assert isinstance(refusal, ValueError)


@pytest.mark.parametrize(
    "value",
    [HUGE, HUGE.encode(), [HUGE] * 3, 10**5_000, Unprintable(), nested(100_000), "\ud800"],
    ids=["text", "bytes", "list", "integer", "unprintable", "nested", "surrogate"],
)
def test_any_value_can_be_refused(value: object) -> None:
    """A hostile value neither breaks the refusal of it nor fills the log."""
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
def test_a_name_of_a_megabyte_does_not_become_a_message_of_a_megabyte(refusal: RametError) -> None:
    """Names may be a model's words, and messages go back to models."""
    shown = str(refusal)

    assert len(shown) < 20_000


def test_an_unknown_name_comes_with_the_known_ones() -> None:
    """A misspelt name can be corrected from the message."""
    refusal = Unknown("tool", "Raed", ("Read", "Write"))

    assert str(refusal) == "unknown tool 'Raed'; known: Read, Write"
    assert isinstance(refusal, LookupError)


def test_an_unknown_name_where_there_are_none_says_so() -> None:
    """An empty list of names does not look like a cut-off message."""
    assert str(Unknown("team", "a")) == "unknown team 'a'; there are none"


def test_a_long_list_of_known_names_is_cut_visibly() -> None:
    """Whoever reads twenty names knows that there are more."""
    refusal = Unknown("tool", "z", tuple(f"tool-{number}" for number in range(21)))

    assert str(refusal).endswith("tool-19, …")
    assert len(refusal.known) == 21


def test_a_refused_reservation_says_by_how_much_and_by_whom() -> None:
    """Large figures are exact: a model that is told 1e+06 twice cannot see what was too much."""
    refusal = BudgetExceeded("tokens", asked=1_000_001, left=1_000_000, scope="main/a")

    assert str(refusal) == "budget of main/a: tokens asked 1000001, left 1000000"


def test_money_in_a_refusal_has_no_noise_of_binary_fractions() -> None:
    """0.1 + 0.2 is shown as 0.3."""
    assert "asked 0.3," in str(BudgetExceeded("usd", asked=0.1 + 0.2, left=0.0, scope="main"))


@pytest.mark.parametrize(("free", "shown"), [(None, "no"), (0, "no; free now: 0"), (2.0, "no; free now: 2")])
def test_a_refused_spawn_says_what_is_free_if_it_is_known(free: float | None, shown: str) -> None:
    """Nothing free is not the same as not knowing."""
    assert str(SpawnRefused("children", "no", free=free)) == f"spawn refused (children): {shown}"


def test_a_missing_extra_holds_the_line_that_installs_it() -> None:
    """It can be pasted into a shell."""
    refusal = MissingExtra("the model openai:gpt", "openai")

    assert "pip install 'ramet[openai]'" in str(refusal)
    assert isinstance(refusal, ImportError)


def test_a_models_failure_names_the_model_and_the_status() -> None:
    """It can be told from an agent's finding, and says whether asking again may help."""
    failure = ModelFailed("openai:gpt", "overloaded", status=529, retryable=True, retry_after_s=2.0)

    assert str(failure) == "openai:gpt: overloaded (HTTP 529)"
    assert (failure.retryable, failure.retry_after_s) == (True, 2.0)


def test_a_denial_says_what_and_why() -> None:
    """Whoever was denied learns which gate it was."""
    assert str(Denied("Bash", "not in this folder")) == "Bash denied: not in this folder"
