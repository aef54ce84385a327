"""Schemas, types and answers that double the work of a check at every level: the host counts steps and stops.

No test measures time: what is not bounded does not end within the time limit of a test.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Union

import pydantic
import pytest

from ramet.agent.files.agent_file import parse_agent
from ramet.agent.from_recipe import agent_of
from ramet.agent.output import DoesNotFit, OutputContract
from ramet.agent.typed.from_schema import hint_of
from ramet.agent.typed.values import decode_value
from ramet.core.errors import InvalidValue
from ramet.core.recipe import Recipe, TaskDefinition

DEPTH = 31
LEAVES: tuple[Any, ...] = ({"type": "integer"}, {"type": "integer", "default": 0})


def _twice(leaf: dict[str, Any], kind: str = "dataclass", depth: int = DEPTH) -> dict[str, Any]:
    """Return classes each of which refers to the next one in two fields."""
    types: dict[str, Any] = {}
    for level in range(depth):
        last = level == depth - 1
        field = leaf if last else {"$ref": f"#/types/A{level + 1}"}
        if "default" in leaf and not last:
            field = {**field, "default": {}}
        types[f"A{level}"] = {"kind": kind, "fields": {"x": field, "y": field}}
    return types


def _chain(keyword: str, *, leaf: Any = None) -> dict[str, Any]:
    """Return a schema each of whose parts refers to the next one twice."""
    parts = {f"a{level}": {keyword: [{"$ref": f"#/$defs/a{level + 1}"}] * 2} for level in range(DEPTH)}
    return {"$defs": {**parts, f"a{DEPTH}": {} if leaf is None else leaf}, "$ref": "#/$defs/a0"}


def _nested(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = {"x": leaf}
    return leaf


def _unions(depth: int) -> Any:
    """Return a type whose every level is a choice between two classes with equal fields."""
    below: Any = int
    for level in range(depth, -1, -1):
        pair = [dataclasses.make_dataclass(f"{name}{level}", [("x", below)]) for name in "AB"]
        below = Union[pair[0], pair[1]]  # noqa: UP007 - of classes made here
    return below


# ---- types of recipes


@pytest.mark.parametrize("kind", ["dataclass", "model"])
def test_a_class_referred_to_twice_at_each_level_is_read_once(kind: str) -> None:
    """A type of 31 levels is made, described and checked with work that grows with the type's text."""
    types = _twice(LEAVES[0], kind)
    returns = {"$ref": "#/types/A0"}
    task = TaskDefinition(docstring="Solve.", parameters={"x": returns}, returns=returns)
    recipe = Recipe.from_entry(Recipe(name="m", tasks={"solve": task}, types=types).entry())

    solve = agent_of(recipe).tasks["solve"]

    assert solve.returns is hint_of(returns, types)
    assert len(json.dumps(OutputContract(solve.output).schema)) < 10_000
    with pytest.raises(InvalidValue, match=r"m|x"):
        decode_value(solve.returns, {"x": {}}, "value")


def test_classes_nested_too_deep_are_refused() -> None:
    """Depth counts from the outermost type, even for a class that was read before at a smaller depth."""
    types = _twice(LEAVES[0], depth=20)
    types |= {
        f"B{level}": {
            "kind": "dataclass",
            "fields": {"x": {"$ref": f"#/types/B{level + 1}" if level < 19 else "#/types/A0"}},
        }
        for level in range(20)
    }
    types["Both"] = {"kind": "dataclass", "fields": {"x": {"$ref": "#/types/A0"}, "y": {"$ref": "#/types/B0"}}}

    with pytest.raises(InvalidValue, match="at most 32 deep"):
        hint_of({"$ref": "#/types/Both"}, types)


def test_defaults_that_double_at_each_level_are_refused() -> None:
    """A class's default makes its parts, and these make theirs: the error names the number of steps."""
    with pytest.raises(InvalidValue, match="steps"):
        hint_of({"$ref": "#/types/A0"}, _twice(LEAVES[1]))


def test_types_of_too_many_parts_are_refused() -> None:
    """The error names the bound on the parts of all classes, each counted with its own parts."""
    names = [f"T{at}" for at in range(900)]
    types = {name: {"kind": "dataclass", "fields": {"x": {"type": "integer"}}} for name in names}
    types["All"] = {"kind": "model", "fields": {f"f{at}": {"$ref": f"#/types/{name}"} for at, name in enumerate(names)}}
    for at in range(10):
        types[f"More{at}"] = {"kind": "model", "fields": {"x": {"$ref": "#/types/All"}, "y": {"type": "integer"}}}
    everything = {"type": "array", "prefixItems": [{"$ref": f"#/types/More{at}"} for at in range(10)]}

    with pytest.raises(InvalidValue, match="at most 10000 parts"):
        hint_of({**everything, "items": False, "minItems": 10}, types)


def test_tasks_of_a_recipe_share_the_bound_on_parts() -> None:
    """Many parameters of one type cost the type once."""
    types = _twice(LEAVES[0])
    parameters = {f"p{at}": {"$ref": "#/types/A0"} for at in range(200)}
    recipe = Recipe(name="m", tasks={"solve": TaskDefinition(docstring="S.", parameters=parameters)}, types=types)

    solve = agent_of(recipe).tasks["solve"]

    assert len({each.annotation for each in solve.__signature__.parameters.values()}) == 1


# ---- values of types


def test_a_value_that_fits_no_choice_at_its_last_level_is_refused() -> None:
    """Each of 24 levels has two equal choices: the value is refused with the number of steps."""
    kind, value = _unions(24), _nested(25, "bad")

    with pytest.raises(InvalidValue, match="steps"):
        decode_value(kind, value, "value")
    with pytest.raises(DoesNotFit, match="steps"):
        OutputContract(kind).parse(json.dumps(value))


@dataclasses.dataclass
class Plus:
    left: Union[Plus, Minus, int]  # noqa: UP007
    right: Union[Plus, Minus, int]  # noqa: UP007


@dataclasses.dataclass
class Minus:
    left: Union[Plus, Minus, int]  # noqa: UP007
    right: Union[Plus, Minus, int]  # noqa: UP007


def test_an_answer_nested_in_a_recursive_choice_is_refused() -> None:
    """The type is short, and the depth of the answer doubles the work."""
    answer: Any = "bad"
    for _ in range(40):
        answer = {"left": answer, "right": 1}

    with pytest.raises(DoesNotFit, match="steps"):
        OutputContract(Plus).parse(json.dumps(answer))


def test_values_of_one_answer_share_one_bound() -> None:
    """Values in prose are candidates, and their steps are counted together."""
    one = json.dumps(_nested(14, "bad"))

    with pytest.raises(DoesNotFit, match="steps"):
        OutputContract(_unions(13)).parse("\n".join([one] * 40))


class Leaf(pydantic.BaseModel):
    value: int


class Node(pydantic.BaseModel):
    children: list[Union[Node, Leaf]]  # noqa: UP007


class Move(pydantic.BaseModel):
    kind: str = "move"
    then: list[Union[Move, Stop]] = []  # noqa: UP007
    note: str | None = None


class Stop(pydantic.BaseModel):
    reason: str


def _tree(depth: int) -> Any:
    return {"value": depth} if depth == 0 else {"children": [_tree(depth - 1) for _ in range(2)]}


@pytest.mark.parametrize("of_type", [True, False])
def test_usual_trees_are_read(of_type: bool) -> None:
    """A tree of 1,000 nodes fits its recursive type and the type's JSON schema."""
    data = _tree(9)
    contract = OutputContract(Node if of_type else Node.model_json_schema())

    assert contract.problem(json.dumps(data)) is None
    moves: Any = []
    for _ in range(100):
        moves = [{"then": moves, "note": "on"}]
    moves = {"then": [{"then": [{"reason": "x"}] * 10, "note": None}] * 50}
    assert OutputContract(Move if of_type else Move.model_json_schema()).problem(json.dumps(moves)) is None


def test_a_large_value_of_a_plain_type_is_read() -> None:
    """The bound grows with the text of a value: 300,000 numbers are allowed."""
    numbers = [0.125] * 300_000

    assert decode_value(list[float], numbers, "value") == numbers


# ---- JSON schemas


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_a_schema_whose_references_double_at_each_level_is_refused(keyword: str) -> None:
    """The error names the number of steps; no choice ends the work early."""
    with pytest.raises(InvalidValue, match="steps"):
        OutputContract(_chain(keyword, leaf={"allOf": {}, "anyOf": {"not": {}}, "oneOf": {"not": {}}}[keyword]))


def test_an_agent_file_with_a_doubling_schema_is_refused(tmp_path: Path) -> None:
    """A stranger's file must not keep a command busy."""
    text = f"---\nname: x\ndescription: d\noutput: {json.dumps(_chain('allOf'))}\n---\nhi\n"

    with pytest.raises(InvalidValue, match="steps"):
        parse_agent(text, source=tmp_path / "x.md", scope="project")


def test_an_answer_that_doubles_the_work_of_a_schema_does_not_fit() -> None:
    """The schema is short and recursive; the answer is nested and wrong at its end."""
    choice = {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    form = {"type": "object", "properties": {"x": choice}}
    contract = OutputContract({"$defs": {"a": form, "b": form}, "$ref": "#/$defs/a"})

    assert contract.problem(json.dumps(_nested(8, 1))) is None
    with pytest.raises(DoesNotFit, match="steps"):
        contract.parse(json.dumps(_nested(40, "bad")))


def test_unique_items_are_compared_in_linear_work() -> None:
    """`uniqueItems` does not compare every pair of unordered items."""
    contract = OutputContract({"type": "array", "uniqueItems": True})
    items: list[Any] = [{"a": number} for number in range(60_000)]

    assert contract.problem(json.dumps(items)) is None
    for same in ([{"a": 1, "b": 2}, {"b": 2, "a": 1.0}], [1, 1.0], [["x"], ["x"]], [None, None]):
        assert "not unique" in str(contract.problem(json.dumps(same)))
    different: list[list[Any]] = [[1, True], [0, False], ["1", 1], [[1], [True]], [{}, []], [None, "null"]]
    for unlike in different:
        assert contract.problem(json.dumps(unlike)) is None


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"anyOf": [{"type": "integer"}] * 3000}, "x" * 200_000),
        ({"items": {"enum": [f"{number:x}" for number in range(7000)]}}, ["1b57"] * 100_000),
        ({"items": {"properties": {f"{number:x}": {} for number in range(4000)}}}, [{}] * 100_000),
        ({"contains": {"const": 1}}, [0] * 60_000),
    ],
    ids=["long messages", "long enum", "many properties", "many items"],
)
def test_a_step_counts_its_real_cost(schema: dict[str, Any], data: Any) -> None:
    """A keyword with a long list and an error that quotes a long value count as many steps."""
    contract = OutputContract(schema)

    assert "steps" in str(contract.problem(json.dumps(data)))


@pytest.mark.parametrize("keyword", ["unevaluatedProperties", "unevaluatedItems"])
def test_keywords_with_uncounted_work_are_refused(keyword: str) -> None:
    """The error names the keyword to use instead."""
    with pytest.raises(InvalidValue, match=r"additionalProperties|items"):
        OutputContract({"type": "object", keyword: False})


def test_a_too_long_schema_is_refused_before_it_is_checked() -> None:
    """The check of a schema is bounded too."""
    with pytest.raises(InvalidValue, match="characters"):
        OutputContract({"anyOf": [{"type": "string"}] * 100_000})
    with pytest.raises(InvalidValue, match="at most 5000 parts"):
        OutputContract({"anyOf": [{}] * 15_000})


@pytest.mark.parametrize("position", ["root", "below"])
def test_no_part_of_a_schema_is_checked_without_counting(position: str) -> None:
    """A named dialect does not bring back validators that count nothing."""
    schema_field = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    pattern = {"type": "string", "pattern": "^(a|a)*$"}
    text = json.dumps({"next": {"next": {"text": "a" * 40 + "!"}}})
    if position == "below":
        with pytest.raises(InvalidValue, match="named at the root"):
            OutputContract({"properties": {"text": {**pattern, **schema_field}}})
        return

    contract = OutputContract({**schema_field, "properties": {"text": pattern, "next": {"$ref": "#"}}})

    assert "does not match" in str(contract.problem(text))
