"""Tests of the codec of values: which values it refuses, which types it builds, and how it handles hostile bytes."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import io
import pathlib
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar

import msgspec
import numpy
import pydantic
import pytest

from ramet.core.errors import InvalidValue, NotShippable, ProtocolError
from ramet.wire.guest_protocol import answer_data
from ramet.wire.values.annotations import returned_type
from ramet.wire.values.values import decode, encode

T = TypeVar("T")
UserId = NewType("UserId", int)


@dataclasses.dataclass
class Row:
    name: str
    handle: Any = None


@dataclasses.dataclass
class Tree:
    value: int
    children: list[Tree] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    length: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x is negative")
        object.__setattr__(self, "length", float(abs(self.x)))


@dataclasses.dataclass
class Team:
    lead: Row | None
    points: dict[str, list[Point]]


@dataclasses.dataclass
class Holder(Generic[T]):
    it: T


class Named(NamedTuple):
    x: int
    y: str = "y"


class Colour(enum.StrEnum):
    RED = "red"


class Mark(enum.Flag):
    A = enum.auto()


class Account(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    user: int = pydantic.Field(alias="userId")
    tags: frozenset[str] = frozenset()
    home: pathlib.Path | None = None


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Options(typing.TypedDict, total=False):
    size: typing.Required[int]
    names: tuple[str, ...]


class Plain:
    """Class that is no data type."""


def round_trip(value: Any, returns: Any = None) -> Any:
    json_size, body = encode(value)
    return decode(body, json_size, returns=returns)


# ---- what cannot travel


def cyclic_value() -> list[Any]:
    value: list[Any] = []
    value.append({"me": value})
    return value


def nested_value(levels: int, inner: Any = 0) -> Any:
    for _ in range(levels):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("value", "location", "reason", "remedy"),
    [
        ({"rows": [1, 2, 3, Row("a", threading.Lock())]}, "result['rows'][3].handle", "_thread.lock", "JSON types"),
        (Plain(), "result", "test_values.Plain", "vars(...)"),
        ((x for x in "ab"), "result", "builtins.generator", "return list(...)"),
        ([io.BytesIO()], "result[0]", "_io.BytesIO", ""),
        ({"f": len}, "result['f']", "builtin_function", "its name"),
        ([Row], "result[0]", "builtins.type", "its name"),
        (ValueError("x"), "result", "builtins.ValueError", "raise it"),
        ({(1, Plain()): 2}, "result['a tuple']", "a key of type", "as keys"),
        (numpy.array([{}]), "result", "its dtype is object", ".tolist()"),
        (numpy.array(["a"]), "result", "its dtype is <U1", ".tolist()"),
        (numpy.ma.masked_array([1], [True]), "result", "MaskedArray", "numpy.asarray"),
        (numpy.longdouble(1), "result", "its dtype is", ".astype"),
        ([cyclic_value()], "result[0][0]['me']", "contains itself", "flatter"),
        (nested_value(201), "result[0][0]", "deeper than 200", "flatter"),
        (Holder(nested_value(200)), "result.it[0]", "deeper than 200", "flatter"),
    ],
)
def test_a_value_that_cannot_be_sent_is_named_by_its_place(value: Any, location: str, reason: str, remedy: str) -> None:
    """The error also names the type and a value to return instead."""
    with pytest.raises(NotShippable) as refusal:
        encode(value)

    assert refusal.value.what.startswith(location)
    assert reason in refusal.value.why
    assert remedy in refusal.value.remedy


def test_a_refused_coroutine_is_reported_with_a_hint_to_await() -> None:
    """A forgotten `await` is the likeliest mistake of an async function."""

    async def forgotten() -> None:
        """Return nothing; the coroutine never runs."""

    coroutine = forgotten()
    with pytest.raises(NotShippable, match="await it"):
        encode({"it": coroutine})
    coroutine.close()


@pytest.mark.parametrize("value", ["x" * 1_001, b"x" * 1_000, list(range(1_000)), {"a": {1: b"x" * 999}}])
def test_a_value_above_the_size_limit_is_refused_with_its_size(value: Any) -> None:
    """The error gives the size and the limit in bytes."""
    with pytest.raises(NotShippable, match=r"it takes \d+ bytes or more, and 1000 are allowed"):
        encode(value, max_bytes=1_000)


def test_a_value_of_shared_parts_is_refused_at_the_size_limit() -> None:
    """A short program can make a value of 2^100 parts."""
    value: list[Any] = []
    for _ in range(100):
        value = [value, value]

    with pytest.raises(NotShippable, match="are allowed"):
        encode(value, max_bytes=100_000)


def test_a_failing_property_is_reported_as_the_reason() -> None:
    """NotShippable names the error of the property."""

    class Lazy(Row):
        @property
        def name(self) -> str:
            raise OSError("gone")

        @name.setter
        def name(self, _: str) -> None: ...

    with pytest.raises(NotShippable, match="reading it failed with OSError"):
        encode([Lazy("x")])


def test_a_value_at_the_deepest_level_arrives() -> None:
    """Every kind of tag arrives from the deepest accepted level."""
    returns = list[Mark | Any]
    inners: tuple[Any, ...] = (0, b"x", numpy.zeros((1, 1)), {}, {1: {}}, Mark.A)
    for inner in inners:
        assert str(round_trip(nested_value(196, inner), returns)) == str(nested_value(196, inner))


# ---- what arrives as what


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        ((1, 2), [1, 2]),
        ({1}, [1]),
        (frozenset(["a"]), ["a"]),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (collections.OrderedDict(a=1), {"a": 1}),
        (Row("a"), {"@type": f"{__name__}.Row", "name": "a", "handle": None}),
        (Named(1), {"@type": f"{__name__}.Named", "x": 1, "y": "y"}),
        (Colour.RED, "red"),
        ({"@type": "mine", "@@x": 1, "@": 2}, {"@type": "mine", "@@x": 1, "@": 2}),
        ({1: "a", None: (1,), (1, "b"): 2}, {1: "a", None: [1], (1, "b"): 2}),
        ({numpy.int64(3): 1}, {3: 1}),
        (2**53 + 1, 2**53 + 1),
        ([10**5_000], [10**5_000]),
        ({10**5_000: {10**5_000}}, {10**5_000: [10**5_000]}),
        ("\ud800", "\ud800"),
        ({"\udc00": 1}, {"\udc00": 1}),
        (memoryview(b"abc"), b"abc"),
        (-0.0, -0.0),
        ("@type", "@type"),
    ],
)
def test_a_value_without_an_annotation_arrives_as_plain_data(value: Any, arrives: Any) -> None:
    """The types of the plain data are exact."""
    arrived_value = round_trip(value)

    assert arrived_value == arrives
    assert type(arrived_value) is type(arrives)


@pytest.mark.parametrize(
    ("value", "returns"),
    [
        ((1, "a"), tuple[int, str]),
        ((1, 2, 3), tuple[int, ...]),
        ((), tuple[()]),
        ({1, 2}, set[int]),
        ({frozenset([1])}, set[frozenset[int]]),
        ([(1, {2})], list[tuple[int, set[int]]]),
        ({"a": (1,)}, dict[str, tuple[int]]),
        ({1: Row("a")}, dict[int, Row]),
        ({Colour.RED: 1}, dict[Colour, int]),
        (pathlib.Path("/a"), pathlib.Path | None),
        (collections.Counter("aab"), collections.Counter[str]),
        (Tree(1, [Tree(2, [Tree(3)])]), Tree),
        (Point(3), Point),
        (Team(Row("a"), {"b": [Point(1)]}), Team),
        (Holder(Row("a")), Holder[Row]),
        (Named(1, "b"), Named),
        ([Named(1), None, Colour.RED], list[Named | Colour | None]),
        (Account.model_validate({"userId": 1, "tags": ["a"], "home": "/x", "other": [1]}), Account),
        (Numbers([1, 2]), Numbers | None),
        (answer_data.SpawnReply(run="r", path="p", name="n"), answer_data.SpawnReply),
        ({"size": 1, "names": ("a",)}, Options),
        (5, Annotated[UserId, "an id"]),
        ("fast", Literal["slow", "fast"]),
        (3, float),
        (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), datetime.datetime),
        (None, type(None)),
        (Row("a", [1]), Row),
    ],
)
def test_a_value_arrives_as_the_annotated_type(value: Any, returns: Any) -> None:
    """Containers and the user's own types are built."""
    arrived_value = round_trip(value, returns)

    assert arrived_value == value
    assert type(arrived_value) is type(value)


@pytest.mark.parametrize(
    ("value", "returns", "field", "expected"),
    [
        ("a", int, "output", "int"),
        (1, None.__class__, "output", "None"),
        (None, int, "output", "int"),
        ([1, "a"], list[int], "output[1]", "int"),
        ({"a": [1, {}]}, dict[str, list[int]], "output['a'][1]", "int"),
        ({1: 2}, dict[str, int], "output[key 0]", "str"),
        ([1, 2], tuple[int], "output", "1 values, for a tuple"),
        ([[1]], set[Any], "output", "that a set can hold"),
        ("slow", Literal["fast"], "output", "'fast'"),
        ({"name": "a"}, Row, "output", "Row"),
        ([Row(5)], list[Row], "output[0].name", "str"),  # type: ignore[arg-type]
        ({"rows": [Row("a"), Row(None)]}, dict[str, list[Row]], "output['rows'][1].name", "str"),  # type: ignore[arg-type]
        ([1], list[Row | str] | None, "output", "list"),
        ([[{"a": "b"}], [{"a": 1}]], list[list[dict[str, str]]], "output[1][0]['a']", "str"),
        ([{"a": [1]}, {"a": 1}], list[dict[str, list[int]]], "output[1]['a']", "a list"),
        ([{1: "a"}, {"b": "c"}], list[dict[int, str]], "output[1][key 0]", "int"),
        ({10**5_000: "a"}, dict[int, int], "output['a int']", "int"),
        ([10**5_000], list[str], "output[0]", "str"),
        ({10**5_000: "a"}, Options, "output", "keys of Options"),
        ({"names": []}, Options, "output", "keys of Options: size"),
        ({"size": 1, "more": 2}, Options, "output", "keys of Options"),
        (Colour.RED, Row, "output", "Row"),
        (Account(userId=1), Named, "output", "Named"),
        (numpy.zeros(2), list[float], "output", "a list"),
    ],
)
def test_a_value_that_does_not_fit_its_annotation_is_named_by_its_place(
    value: Any, returns: Any, field: str, expected: str
) -> None:
    """InvalidValue says which type would fit."""
    json_size, body = encode(value)

    with pytest.raises(InvalidValue) as misfit:
        decode(body, json_size, returns=returns)

    assert misfit.value.field == field
    assert expected in misfit.value.accepted


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"x": -1}, "ValueError: x is negative"),
        ({"x": 1, "z": 2}, "TypeError"),
        ({}, "TypeError"),
    ],
)
def test_a_failing_constructor_raises_invalid_value(fields: dict[str, Any], expected: str) -> None:
    """A guest may send any fields under the name of a type, so any error of a constructor is caught."""
    text = msgspec.json.encode({"@type": f"{__name__}.Point", **fields})

    with pytest.raises(InvalidValue) as misfit:
        decode(text, len(text), returns=Point, label="checkpoint")

    assert misfit.value.field == "checkpoint"
    assert expected in misfit.value.accepted


def test_a_failing_validator_of_a_model_raises_invalid_value() -> None:
    """The error names the place of the first complaint."""
    text = msgspec.json.encode([{"@type": f"{__name__}.Account", "user": "me"}])

    with pytest.raises(InvalidValue) as misfit:
        decode(text, len(text), returns=list[Account])

    assert misfit.value.field == "output[0].user"
    assert "Account" in misfit.value.accepted


def test_a_model_is_built_from_data_that_fits() -> None:
    """A dict, or an object with another type name, becomes the model if its fields fit."""

    class Answer(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        name: str
        handle: list[Numbers] | None = None

    assert round_trip([Row("a"), {"name": "b"}], list[Answer]) == [Answer(name="a"), Answer(name="b")]
    for value in ({"name": "a", "more": 1}, {1: 2}, ["a"], Row(5)):  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="Answer"):
            round_trip(value, Answer)


def test_only_annotated_types_are_built() -> None:
    """The name of another type stays text, and its module is not imported."""
    objects = b'{"@type":"os.system","command":"true"},{"@type":"antigravity.X"}'
    text = b"[" + objects + b',{"@enum":["values.Colour","RED","red"]}]'

    assert decode(text, len(text), returns=list[Row | Any]) == [
        {"@type": "os.system", "command": "true"},
        {"@type": "antigravity.X"},
        "red",
    ]
    assert "antigravity" not in sys.modules


def test_numpy_scalars_become_numbers_if_annotated() -> None:
    """Scalars without an annotation stay numpy scalars."""
    assert type(round_trip(numpy.int64(3))) is numpy.int64
    assert type(round_trip(numpy.float32(0.5), float)) is float
    assert type(round_trip({"n": numpy.int64(3)}, dict[str, int])["n"]) is int


def test_an_array_arrives_as_data_without_numpy() -> None:
    """The data has the bytes, the dtype and the shape; sizes are checked as with numpy."""
    json_size, body = encode([numpy.arange(3, dtype="<i2")])
    script = f"""
import sys
sys.modules["numpy"] = None
from ramet.core.errors import ProtocolError
from ramet.wire.values.values import decode
print(decode({body!r}, {json_size}))
try:
    decode(b'{{"@array":["<i2",[3],4]}}1234', 24)
except ProtocolError as refused:
    print(refused)
"""
    process_result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert process_result.stdout.splitlines() == [
        "[{'@type': 'numpy.ndarray', 'dtype': '<i2', 'shape': [3], 'data': b'\\x00\\x00\\x01\\x00\\x02\\x00'}]",
        "a value that cannot be read: an array of another size than its shape",
    ]


# ---- a hostile writer


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"", b""),
        (b"[1", b""),
        (b"1", b"more"),
        (b'{"@bytes":5}', b"1234"),
        (b'{"@bytes":4}', b"12345"),
        (b'{"@bytes":-1}', b""),
        (b'[{"@bytes":4},{"@bytes":4}]', b"1234"),
        (b'{"@bytes":1.0}', b"1"),
        (b'{"@bytes":true}', b"1"),
        (b'{"@other":1}', b""),
        (b'{"@int":"zz"}', b""),
        (b'{"@int":5}', b""),
        (b'{"@float":"1e5"}', b""),
        (b'{"a":1,"@b":2}', b""),
        (b'{"@int":"1","a":1}', b""),
        (b'{"@type":5}', b""),
        (b'{"@map":[[[1,{}],2]]}', b""),
        (b'{"@map":[[1]]}', b""),
        (b'{"@map":{}}', b""),
        (b'{"@datetime":"yesterday"}', b""),
        (b'{"@timedelta":[1e9,0,0]}', b""),
        (b'{"@timedelta":[9999999999,0,0]}', b""),
        (b'{"@decimal":"x"}', b""),
        (b'{"@uuid":"x"}', b""),
        (b'{"@enum":["x"]}', b""),
        (b'{"@str":1}', b"\xff"),
        (b'{"@complex":[1]}', b""),
        (b'{"@array":["|O",[1],8]}', b"12345678"),
        (b'{"@array":["|S8",[1],8]}', b"12345678"),
        (b'{"@array":["<f16",[1],16]}', b"1234567812345678"),
        (b'{"@array":["<f8",[1],7]}', b"1234567"),
        (b'{"@array":["<f8",[-1],-8]}', b""),
        (b'{"@array":["<f8",[1099511627777,0],0]}', b""),
        (b'{"@array":["<f8",[1.0],8]}', b"12345678"),
        (b'{"@array":["<f8",' + b"[" * 3 + b"],1]}", b""),
        (b'{"@array":["<f8",[' + b",".join([b"1"] * 65) + b"],8]}", b"12345678"),
        (b'{"@scalar":["<f8",4]}', b"1234"),
        (b"[" * 206 + b"]" * 206, b""),
        (b"[" * 10_000 + b"]" * 10_000, b""),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b""),
        (b'"\xff"', b""),
        (b"NaN", b""),
        (b"1e999", b""),
        (b"1" * 100_000, b""),
    ],
)
def test_bytes_that_no_encoder_writes_raise_protocol_error(text: bytes, parts: bytes) -> None:
    """Every malformed value raises the same class of error."""
    with pytest.raises(ProtocolError):
        decode(text + parts, len(text))


@pytest.mark.parametrize("json_size", [-1, 0, 3, 2**40])
def test_the_announced_size_is_checked(json_size: int) -> None:
    """A size that does not fit the received bytes raises ProtocolError."""
    with pytest.raises(ProtocolError):
        decode(b"{}", json_size)


def test_one_part_cannot_be_referenced_repeatedly() -> None:
    """A megabyte that is referenced a thousand times would fill the host's memory."""
    text = b"[" + b",".join([b'{"@bytes":1000000}'] * 1_000) + b"]"

    with pytest.raises(ProtocolError, match="missing"):
        decode(text + b"x" * 1_000_000, len(text))


def test_keys_chosen_to_collide_are_refused() -> None:
    """A dict or a set of keys with one hash would take a minute to build."""
    alike = [number * (2**61 - 1) for number in range(60_000)]
    keys = msgspec.json.encode({"@map": [[number, None] for number in alike]})
    items = msgspec.json.encode(alike)

    with pytest.raises(ProtocolError, match="keys that a dict cannot hold"):
        decode(keys, len(keys))
    with pytest.raises(InvalidValue, match="that a set can hold"):
        decode(items, len(items), returns=set[int])


@pytest.mark.parametrize("part", [b"[]", b"{}", b"0", b'{"@int":"1"}', b'"a"'])
def test_a_value_of_too_many_parts_is_refused_before_it_is_built(part: bytes) -> None:
    """Each item, field and bracket of a guest's value takes time and memory of the host."""
    body = b"[" + b",".join([part] * 500_001) + b"]"

    with pytest.raises(InvalidValue, match="at most 500000 parts") as refusal:
        decode(body, len(body), label="checkpoint")

    assert refusal.value.field == "checkpoint"


def test_commas_and_brackets_in_a_text_are_not_counted_as_parts() -> None:
    """A text is one part, whatever its length and escapes."""
    value = {"text": '[1,2,{"a":"\\\\"}]' * 100_000, "bytes": b"[," * 500_000}

    assert round_trip(value) == value


def test_common_keys_with_equal_hashes_are_accepted() -> None:
    """-1 and -2 have one hash, and so have points on a grid; a value may hold many dicts of them."""
    grid = {(x, y): x * y for x in range(-9, 9) for y in range(-9, 9)}

    assert round_trip([{-1: 1, -2: 2}] * 5_000) == [{-1: 1, -2: 2}] * 5_000
    assert round_trip([grid] * 100) == [grid] * 100


def test_keys_that_collide_are_counted_over_the_whole_value() -> None:
    """Many dicts or sets with some colliding keys each take as long as one with many."""
    alike = [number * (2**61 - 1) for number in range(1, 100)]
    one = msgspec.json.encode({"@map": [[number, None] for number in alike]})
    keys, items = b"[" + b",".join([one] * 100) + b"]", msgspec.json.encode([alike] * 100)

    assert len(decode(one, len(one))) == len(alike)
    with pytest.raises(ProtocolError, match="keys that a dict cannot hold"):
        decode(keys, len(keys))
    with pytest.raises(InvalidValue, match="that a set can hold"):
        decode(items, len(items), returns=list[set[int]])


class Numbered(pydantic.BaseModel):
    whole: set[int] = set()
    exact: frozenset[decimal.Decimal] = frozenset()
    by_number: dict[int, str] = {}


@pytest.mark.parametrize("field", ["whole", "exact", "by_number"])
def test_keys_that_a_model_would_make_are_counted(field: str) -> None:
    """The validators of a model make sets from lists, and numbers from texts."""
    alike = [str(number * (2**61 - 1)) for number in range(1, 2_000)]
    few: Any = dict.fromkeys(alike[:90], "") if field == "by_number" else alike[:90]
    many: Any = dict.fromkeys(alike, "") if field == "by_number" else alike
    if field == "whole":
        few, many = list(map(int, few)), list(map(int, many))

    assert len(getattr(round_trip({field: few}, Numbered), field)) == 90
    with pytest.raises(InvalidValue, match="one hash"):
        round_trip({field: many}, Numbered)
    with pytest.raises(InvalidValue, match="one hash"):
        round_trip([{field: few}] * 50, list[Numbered])


def test_an_array_of_booleans_holds_only_zero_and_one() -> None:
    """Other bytes become 1."""
    text = b'{"@array":["|b1",[3],3]}'

    assert decode(text + b"\x00\x07\xff", len(text)).view("|u1").tolist() == [0, 1, 1]


def test_an_error_does_not_repeat_its_value() -> None:
    """The value may be megabytes, or have a `__repr__` of its own."""
    json_size, body = encode(["x" * 10**6] * 5)

    with pytest.raises(InvalidValue) as misfit:
        decode(body, json_size, returns=int)

    assert len(str(misfit.value)) < 300


# ---- annotations


def make() -> Callable[[], Any]:
    @dataclasses.dataclass
    class Local:
        x: int

    def function() -> list[Local]:
        return [Local(1)]

    return function


class Caller:
    def method(self) -> Row:
        return Row("a")

    def __call__(self) -> tuple[int, ...]:
        return (1,)


async def async_function() -> Row | None:
    return None


def function_without_annotation():  # type: ignore[no-untyped-def]
    return 1


def function_with_unknown_type() -> NoSuchName:  # type: ignore[name-defined]  # noqa: F821
    return 1


def function_that_returns_none() -> None:
    return None


def test_the_return_annotation_of_a_function_is_found() -> None:
    """Annotations of functions, methods and callables resolve; an unresolvable annotation counts as none."""
    local = make()
    (row,) = round_trip(local(), returned_type(local))

    assert type(row).__qualname__ == "make.<locals>.Local"
    assert returned_type(Caller().method) == Row
    assert returned_type(Caller()) == tuple[int, ...]
    assert returned_type(async_function) == Row | None
    assert returned_type(function_that_returns_none) is type(None)
    assert returned_type(function_with_unknown_type) is None
    for function in (function_without_annotation, len, int):
        assert round_trip(1, returned_type(function)) == 1


def test_a_text_full_of_quotes_is_encoded_in_linear_time() -> None:
    """A guest's result with `"@` many times in one text does not hold up the host, which records it."""
    text = '"@' * 20_000
    start_s = time.thread_time()

    encoded = encode([text, {"@x": 1}]), encode([text])

    assert time.thread_time() - start_s < 1.0
    assert [decode(each.body, each.json_size) for each in encoded] == [[text, {"@x": 1}], [text]]
