"""Types of recipes and their values that would take much time or memory: counted and refused before the work.

No test measures time: what is not bounded does not end within the time limit of a test, or is told by its size.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import gc
import json
import uuid
import weakref
from typing import Any

import pytest

from ramet.agent.from_recipe import agent_of
from ramet.agent.output import DoesNotFit, OutputContract
from ramet.agent.typed.from_schema import hint_of
from ramet.agent.typed.schema import Types
from ramet.agent.typed.to_schema import schema_of
from ramet.agent.typed.values import decode_value
from ramet.core.errors import InvalidValue
from ramet.core.recipe import Recipe, TaskDefinition

PRIME = 2**61 - 1  #: its multiples have the hash 0
INTEGER, DECIMAL = {"type": "integer"}, {"type": "string", "format": "decimal"}
UUID, TEXT = {"type": "string", "format": "uuid"}, {"type": "string"}
HASHES = r"one hash|between -2\^53 and"  #: large numbers are refused in answers, whatever their hash
kinds = pytest.mark.parametrize("kind", ["dataclass", "model"])


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _set(items: Any) -> dict[str, Any]:
    return {**_list(items), "uniqueItems": True}


def _class(kind: str, **fields: Any) -> Any:
    """Return a class of a recipe."""
    return hint_of({"$ref": "#/types/W"}, {"W": {"kind": kind, "fields": fields}})


def _expect_refusal(hint: Any, data: Any, words: str) -> None:
    """Expect that the value is refused as an argument and as an answer."""
    with pytest.raises(InvalidValue, match=words):
        decode_value(hint, data, "value")
    with pytest.raises(DoesNotFit, match=words):
        OutputContract(hint).parse(json.dumps(data))


# ---- defaults


@kinds
@pytest.mark.parametrize(
    ("field", "count"),
    [
        ({**_list(_list(INTEGER)), "default": [[]] * 5_000}, 100),
        ({**_list(TEXT), "default": ["x" * 20_000]}, 2_000),
        ({**_list({}), "default": [{"a": {}}] * 1_000}, 500),
        ({**_list({"anyOf": [{"type": "integer"}, TEXT]}), "default": ["x"] * 1_000}, 200),
    ],
    ids=["lists", "long text", "objects", "choices"],
)
def test_defaults_are_counted_by_their_size_for_each_object(kind: str, field: Any, count: int) -> None:
    """A short value must not make many copies of a large default."""
    kind_of_value = _class(kind, a=field)

    assert len(decode_value(list[kind_of_value], [{}] * 3, "value")) == 3  # type: ignore[valid-type]
    _expect_refusal(list[kind_of_value], [{}] * count, "steps")  # type: ignore[valid-type]


@kinds
def test_shared_defaults_are_counted_for_each_object(kind: str) -> None:
    """Each object has a place for each default, even if its value needs no copy."""
    wide = _class(kind, **{f"f{at}": {**INTEGER, "default": at} for at in range(300)})

    _expect_refusal(list[wide], [{}] * 20_000, "steps")  # type: ignore[valid-type]


@kinds
def test_nested_defaults_are_counted(kind: str) -> None:
    """A default whose classes have defaults again is as large as everything that it makes."""
    types: Types = {"C0": {"kind": kind, "fields": {"a": {**_list(INTEGER), "default": [1] * 500}}}}
    for level in range(1, 6):
        nested = {**_list({"$ref": f"#/types/C{level - 1}"}), "default": [{}] * 10}
        types[f"C{level}"] = {"kind": kind, "fields": {"a": nested}}

    with pytest.raises(InvalidValue, match="steps"):
        decode_value(hint_of({"$ref": "#/types/C5"}, types), {}, "value")


@kinds
def test_the_defaults_of_one_recipe_share_their_bound(kind: str) -> None:
    """Many parameters and fields with short defaults may make a lot together."""
    types: Types = {"W": {"kind": kind, "fields": {"a": {**_list(_list(INTEGER)), "default": [[]] * 5_000}}}}
    default = {**_list({"$ref": "#/types/W"}), "default": [{}] * 5}
    tasks = {"go": TaskDefinition(docstring="Go.", parameters={f"p{at}": default for at in range(40)})}
    types["V"] = {"kind": kind, "fields": {f"f{at}": default for at in range(40)}}

    with pytest.raises(InvalidValue, match="steps"):
        agent_of(Recipe(name="m", types=types, tasks=tasks))
    with pytest.raises(InvalidValue, match="steps"):
        hint_of({"$ref": "#/types/V"}, types)


@kinds
def test_a_default_has_its_type_and_belongs_to_one_object(kind: str) -> None:
    """Both kinds of classes make equal values, and objects do not share mutable ones."""
    day = {"type": "string", "format": "date", "default": "2026-11-26"}
    class_ = _class(kind, names={**_set(TEXT), "default": ["a"]}, day=day, count={**INTEGER, "default": 1})

    one, other = decode_value(list[class_], [{}, {}], "value")  # type: ignore[valid-type]

    assert (one.names, one.day, one.count) == ({"a"}, datetime.date(2026, 11, 26), 1)
    one.names.add("b")
    assert other.names == {"a"}
    assert class_().names == {"a"}


@kinds
def test_defaults_are_written_and_shown_as_given(kind: str) -> None:
    """A class is written back as equal data, and a model's schema shows its defaults."""
    fields = {"a": {**_list(INTEGER), "default": [1, 2]}, "b": {**INTEGER, "default": 7}}
    types: Types = {}

    schema_of(_class(kind, **fields), types, "x")

    assert types == {"W": {"kind": kind, "fields": fields}}
    if kind == "model":
        properties = OutputContract(_class(kind, **fields)).schema["properties"]
        assert (properties["a"]["default"], properties["b"]["default"]) == ([1, 2], 7)


@kinds
def test_usual_defaults_of_many_objects_are_accepted(kind: str) -> None:
    """A few small defaults in each of many objects are allowed."""
    entry = _class(
        kind, name=TEXT, tags={**_list(TEXT), "default": []}, size={**INTEGER, "default": 0}, on={**TEXT, "default": ""}
    )
    data = [{"name": f"number {at}"} for at in range(15_000)]

    assert len(decode_value(list[entry], data, "value")) == 15_000  # type: ignore[valid-type]


# ---- values of one hash


def _id(value: Any) -> str:
    return "data" if isinstance(value, list | dict) else str(value)


def _numbers(count: int, of: Any = int) -> list[Any]:
    return [of(at * PRIME) for at in range(count)]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A hashable value."""

    left: int
    right: int


def _uuids(count: int) -> list[str]:
    return [str(uuid.UUID(int=at * PRIME)) for at in range(count)]


def _pairs() -> list[list[str]]:
    """Return pairs of texts that can be read as numbers and as UUIDs."""
    return [[f"{at:032}", f"{at * PRIME * 10**9:032}"] for at in range(2_000)]


@pytest.mark.parametrize(
    ("hint", "data"),
    [
        (hint_of(_set(INTEGER), {}), _numbers(2_000)),
        (hint_of(_set(INTEGER), {}), _numbers(2_000, str)),
        (hint_of(_set(DECIMAL), {}), _numbers(2_000)),
        (hint_of(_set(DECIMAL), {}), _numbers(2_000, str)),
        (hint_of(_set(DECIMAL), {}), [f" +{at * PRIME:_}.0" for at in range(2_000)]),
        (hint_of(_set({}), {}), _numbers(2_000)),
        (hint_of(_set(UUID), {}), _uuids(2_000)),
        (hint_of(_set({"anyOf": [TEXT, INTEGER]}), {}), _numbers(2_000)),
        (hint_of({"type": "object", "additionalProperties": _set(INTEGER)}, {}), {"a": [], "b": _numbers(2_000)}),
        (hint_of(_set({"type": "array", "prefixItems": [UUID, DECIMAL], "items": False, "minItems": 2}), {}), _pairs()),
        (hint_of(_list(_set(INTEGER)), {}), [_numbers(90)] * 30),
        (set[tuple[int, int]], [[each, 0] for each in _numbers(2_000)]),
        (set[Pair], [{"left": each, "right": 0} for each in _numbers(2_000)]),
        (frozenset[int], _numbers(2_000)),
        (dict[int, str], dict.fromkeys(_numbers(2_000, str), "")),
        (dict[decimal.Decimal, Any], dict.fromkeys(_numbers(2_000, str), "")),
        (dict[uuid.UUID, str], dict.fromkeys(_uuids(2_000), "")),
        (dict[str, dict[int, str]], {"a": dict.fromkeys(_numbers(2_000, str), "")}),
    ],
    ids=_id,
)
def test_numbers_with_equal_hashes_are_refused_in_sets_and_keys(hint: Any, data: Any) -> None:
    """A set or dict would compare each with all others; the refusal comes before it is made."""
    _expect_refusal(hint, data, HASHES)


@kinds
def test_numbers_with_equal_hashes_are_refused_within_classes(kind: str) -> None:
    """Fields of a class and their defaults are checked."""
    _expect_refusal(_class(kind, a=_set(INTEGER)), {"a": _numbers(2_000)}, HASHES)
    with pytest.raises(InvalidValue, match="one hash"):
        _class(kind, a={**_set(INTEGER), "default": _numbers(2_000)})
    with pytest.raises(InvalidValue, match="one hash"):
        _class(kind, a={"enum": _numbers(200)})


def test_enums_and_literals_with_equal_hashes_are_refused() -> None:
    """Making one compares each value with all others."""
    names = {f"N{at}": each for at, each in enumerate(_numbers(200))}

    with pytest.raises(InvalidValue, match="one hash"):
        hint_of({"enum": _numbers(200)}, {})
    with pytest.raises(InvalidValue, match="one hash"):
        hint_of({"$ref": "#/types/E"}, {"E": {"kind": "enum", "values": names}})


@pytest.mark.parametrize(
    ("hint", "data"),
    [
        (set[int], list(range(-1_000, 100_000))),
        (set[int], [1] * 5_000),
        (set[int], _numbers(100, str)),
        (set[str], _numbers(2_000, str)),
        (set[decimal.Decimal], [f"{at}.25" for at in range(20_000)]),
        (set[uuid.UUID], [str(uuid.UUID(int=at)) for at in range(10_000)]),
        (list[int], _numbers(2_000, str)),
        (dict[str, int], dict.fromkeys(_numbers(2_000, str), 1)),
        (dict[int, str], {str(at): "" for at in range(10_000)}),
        (set[tuple[int, ...]], [[at, at + 1] for at in range(10_000)]),
    ],
    ids=_id,
)
def test_usual_sets_and_keys_are_read(hint: Any, data: Any) -> None:
    """Numbers in order, one number many times, and texts, whose hashes are unpredictable, are accepted."""
    assert OutputContract(hint).problem(json.dumps(data)) is None
    decode_value(hint, data, "value")


# ---- types


@pytest.mark.parametrize("definition", ["dataclass", "model", "enum", "literal", "union"])
def test_a_class_of_too_many_parts_is_refused(definition: str) -> None:
    """The refusal comes before it is made, since that time grows faster than the parts."""
    definitions: dict[str, Any] = {
        "dataclass": {"kind": "dataclass", "fields": {f"f{at}": TEXT for at in range(1_001)}},
        "model": {"kind": "model", "fields": {f"f{at}": TEXT for at in range(1_001)}},
        "enum": {"kind": "enum", "values": {f"n{at}": at for at in range(1_001)}},
        "literal": {"kind": "model", "fields": {"a": {"enum": list(range(1_001))}}},
        "union": {"kind": "dataclass", "fields": {"a": {"anyOf": [{"enum": [at, 0]} for at in range(400)]}}},
    }

    with pytest.raises(InvalidValue, match="at most 1000 parts"):
        hint_of({"$ref": "#/types/W"}, {"W": definitions[definition]})


@pytest.mark.parametrize("form", [{"anyOf": [{"enum": [at]} for at in range(9_000)]}, {"enum": list(range(20_000))}])
def test_types_without_a_class_are_bounded_too(form: Any) -> None:
    """The types are a union of many choices and one of many values."""
    with pytest.raises(InvalidValue, match="parts"):
        hint_of(form, {})


def test_defaults_of_large_classes_count_as_much_as_the_classes() -> None:
    """Checking a default needs a validator of its whole type: here one for each field."""
    large = {f"f{at}": {**TEXT, "default": ""} for at in range(400)}
    ways = [{"anyOf": [{"enum": [at, "x"]}, {"$ref": "#/types/L"}]} for at in range(40)]
    types: Types = {"L": {"kind": "model", "fields": large}}
    types["M"] = {"kind": "model", "fields": {f"f{at}": each for at, each in enumerate(ways)}}
    assert hint_of({"$ref": "#/types/M"}, types).__name__ == "M"

    types["M"] = {"kind": "model", "fields": {f"f{at}": {**each, "default": {}} for at, each in enumerate(ways)}}
    with pytest.raises(InvalidValue, match="parts, each class counted"):
        hint_of({"$ref": "#/types/M"}, types)


def test_unused_classes_are_dropped() -> None:
    """Each of 45 recipes brings a class of 500 fields; at most 40 unused ones stay."""
    classes: list[weakref.ref[Any]] = []
    for at in range(45):
        fields = {f"f{at}x{each}": TEXT for each in range(500)}
        types: Types = {"W": {"kind": "model" if at % 2 else "dataclass", "fields": fields}}
        choice = {"anyOf": [{"$ref": "#/types/W"}, {"enum": [at, "x"]}]}
        tasks = {"go": TaskDefinition(docstring="Go.", parameters={"a": _list({"$ref": "#/types/W"}), "b": choice})}
        task = agent_of(Recipe(name="m", types=types, tasks=tasks)).tasks["go"]
        with pytest.raises(InvalidValue):
            task.check_arguments({"a": [{}], "b": at})
        classes.append(weakref.ref(task.__signature__.parameters["a"].annotation.__args__[0]))
    del task

    gc.collect()

    assert sum(each() is not None for each in classes) <= 40


def test_a_class_in_use_stays_the_class_of_its_data() -> None:
    """Reading many other classes does not replace it, so that its values stay equal."""
    types: Types = {"Kept": {"kind": "dataclass", "fields": {"x": INTEGER}}}
    class_ = hint_of({"$ref": "#/types/Kept"}, types)
    for at in range(5_000):
        hint_of({"$ref": "#/types/E"}, {"E": {"kind": "enum", "values": {f"N{at}": at}}})
    gc.collect()

    assert hint_of({"$ref": "#/types/Kept"}, types) is class_
