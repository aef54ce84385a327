"""Errors of values: pydantic collects all of them, and a short text can cause gigabytes of errors.

No test measures time. Memory is that of a process of its own, which has a limit.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, Union, cast

import pydantic
import pytest
from typing_extensions import TypedDict

from ramet.agent.output import DoesNotFit, OutputContract
from ramet.agent.typed.validation import MAX_ERRORS, DoesNotFitType, Validation
from ramet.agent.typed.values import decode_value, encode_argument
from ramet.core.errors import InvalidValue
from tests.support.halved import halved

_MEMORY = 1 << 30


def _wide(count: int = 500) -> Any:
    fields: dict[str, Any] = dict.fromkeys((f"f{at}" for at in range(count)), (int, ...))
    return pydantic.create_model("Wide", **fields)


def _dataclass(part: Any, count: int = 100) -> Any:
    return dataclasses.make_dataclass("Outer", [(f"f{at}", part) for at in range(count)])


class Row(TypedDict):
    a: int
    b: int
    c: NotRequired[str]


class Pair(NamedTuple):
    a: int
    b: int = 3


class Node(pydantic.BaseModel):
    name: str
    children: dict[str, Node] = {}
    note: str | None = None


class Day(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    day: datetime.date
    others: dict[str, datetime.date] = {}


_VALUES = tuple(f"value{at}" for at in range(1_000))
_LIST, _DICT, _LITERAL, _UNION = (cast(Any, each) for each in (list, dict, Literal, Union))  # of types made here
_LISTED = _LITERAL[_VALUES]
_NAMES = [f"{at:x}" for at in range(80_000)]
#: Types, and values that would have gigabytes of errors.
WRONG: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "objects that lack fields, in a list": (lambda: _LIST[_wide()], lambda: [{}] * 20_000),
    "in a dict": (lambda: _DICT[str, _wide()], lambda: {name: {} for name in _NAMES[:20_000]}),
    "in a choice": (lambda: _LIST[_UNION[int, _wide()]], lambda: [{}] * 20_000),
    "in objects": (
        lambda: _dataclass(_dataclass(_wide())),
        lambda: {f"f{at}": {f"f{below}": {} for below in range(100)} for at in range(100)},
    ),
    "typed dicts": (lambda: dict[str, dict[str, Row]], lambda: {"x" * 100_000: {name: {} for name in _NAMES}}),
    "items below a long name": (lambda: dict[str, list[int]], lambda: {"x" * 400_000: [""] * 10_000}),
    "values that a type lists": (lambda: _LIST[_LISTED], lambda: [""] * 150_000),
    "values of an enum": (
        lambda: _DICT[str, enum.Enum("E", {each: each for each in _VALUES})],
        lambda: dict.fromkeys(_NAMES, ""),
    ),
    "a text that many choices quote": (
        lambda: _UNION[tuple(_LIST[_LITERAL[each]] for each in _VALUES[:900])],
        lambda: "x" * 900_000,
    ),
    "choices with long names": (
        lambda: _LIST[_UNION[int, _LIST[_LISTED]]],
        lambda: [[""] * 10] * 20_000,
    ),
}


def _refused(name: str) -> str:
    """Return the refusals of a wrong value, as an argument and as an answer."""
    kind, value = (make() for make in WRONG[name])
    with pytest.raises(InvalidValue) as refusal:
        decode_value(kind, value, "value")
    with pytest.raises(DoesNotFit) as problem:
        OutputContract(kind).parse(json.dumps(value))
    return f"{refusal.value}\n{problem.value}"


@pytest.mark.parametrize("name", halved(WRONG))
def test_errors_of_a_value_take_bounded_memory(name: str) -> None:
    """A value of at most a megabyte is refused by a process that may use 1 GiB."""
    code = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({_MEMORY}, {_MEMORY}))\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import {Path(__file__).stem} as tests\n"
        "print(tests._refused(sys.argv[1]))\n"
    )

    run = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr[-2_000:]
    assert "Field required" in run.stdout or "should be" in run.stdout or "steps" in run.stdout


@pytest.mark.parametrize(
    ("kind", "value", "field"),
    [
        (list[int], [1] * 149_999 + [""], "value[149999]"),
        (dict[str, int], {**dict.fromkeys(_NAMES, 1), "last": ""}, "value.last"),
        (dict[str, list[Pair]], {name: [[1], [""], [""]] for name in _NAMES}, "value.0[1][0]"),
        (list[Union[int, Node]], [1, {"name": "x"}] * 9_999 + [{}], "value[19998].int"),  # noqa: UP007
    ],
    ids=["list", "dict", "named tuple", "choice"],
)
def test_the_first_error_of_a_long_value_names_its_place(kind: Any, value: Any, field: str) -> None:
    """The number of errors and their position do not matter."""
    with pytest.raises(InvalidValue) as refusal:
        decode_value(kind, value, "value")

    assert refusal.value.field == field


def test_an_error_of_a_choice_names_its_class() -> None:
    """Long and short values get the same place."""
    validation = Validation(pydantic.TypeAdapter(list[Union[int, Node]]))  # noqa: UP007
    value: list[Any] = [{}] * 20_000

    with pytest.raises(DoesNotFitType) as refusal:
        validation.validate_data(value, json.dumps(value))

    assert [each.path for each in refusal.value.problems] == [(0, "int"), (0, "Node", "name")]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (list[float], [0.125] * 150_000),
        (dict[str, Row], {name: {"a": 1, "b": 2} for name in _NAMES}),
        (dict[str, Pair], {name: [1] for name in _NAMES}),
        (dict[str, set[datetime.date]], {name: ["2026-11-26"] for name in _NAMES}),
        (dict[str, Union[Node, Day, int]], {name: {"day": "2026-11-26"} for name in _NAMES[:20_000]}),  # noqa: UP007
        (dict[str, Day], {name: {"day": "2026-11-26", "others": {"a": "2026-11-27"}} for name in _NAMES[:40_000]}),
        (_LIST[_LISTED], ["value7"] * 60_000),
        (Node, {"name": "r", "children": {name: {"name": name, "children": {}} for name in _NAMES[:40_000]}}),
    ],
    ids=["floats", "typed dicts", "named tuples", "sets", "choices", "strict", "listed", "recursive"],
)
def test_valid_long_values_are_read(kind: Any, value: Any) -> None:
    """The value equals pydantic's own result, for strict types too."""
    text = json.dumps(value)
    validation = Validation(pydantic.TypeAdapter(kind))

    assert validation.validate_data(value, text) == validation.adapter.validate_json(text)


def test_a_few_errors_are_reported_in_detail() -> None:
    """Ten errors are listed and the others counted, so that the model can correct them at once."""
    with pytest.raises(DoesNotFit) as refusal:
        OutputContract(dict[str, list[int]]).parse(json.dumps({"a": ["x"] * 8, "b": ["y"] * 7}))

    assert refusal.value.problem.count("valid integer") == 10
    assert refusal.value.problem.endswith("; and 5 more")


@pytest.mark.parametrize("hint", [list[int], dict[str, int], list[list[int]]], ids=["list", "dict", "deep"])
def test_many_errors_are_counted_and_the_first_is_reported(hint: Any) -> None:
    """The memory does not grow with the number of errors."""
    count = 50_000
    wrong: Any = {f"{at:x}": "" for at in range(count)} if hint == dict[str, int] else [""] * count
    data = [wrong] if hint == list[list[int]] else wrong
    text, contract = json.dumps(data), OutputContract(hint)
    refusals: list[Callable[[], Any]] = [
        lambda: decode_value(hint, data, "value"),
        lambda: encode_argument(hint, data, "value"),
        lambda: contract.parse(text),
    ]
    for call in refusals:
        with pytest.raises((InvalidValue, DoesNotFit)):  # what the first call imports and makes is no part of it
            call()
        tracemalloc.start()
        try:
            with pytest.raises((InvalidValue, DoesNotFit), match="valid integer"):
                call()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 40 * len(text) + 4_000_000
    assert f"and {count - 1} more" in str(contract.problem(text))
    assert count > MAX_ERRORS
