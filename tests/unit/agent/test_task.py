"""Declarations of tasks and their arguments."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ramet import Agent
from ramet.agent.capabilities.task import Task
from ramet.agent.from_recipe import agent_of
from ramet.core.errors import InvalidValue
from ramet.core.recipe import Recipe
from tests.support import specialists


def solver() -> Agent:
    """Return an agent with one task."""
    agent = Agent(name="solver", primer="You solve equations.")
    agent.module(math, include=["sin", "pi"], visibility="high")

    @agent.task
    def solve(equation: str, digits: int = 3) -> list[float]:
        """Solve the equation."""

    return agent


def test_a_task_is_its_docstring_and_signature() -> None:
    """Both are data in the agent's recipe."""
    recipe = solver().recipe()

    assert recipe.data()["task_definitions"] == {
        "solve": {
            "docstring": "Solve the equation.",
            "signature": {
                "parameters": {"equation": {"type": "string"}, "digits": {"type": "integer", "default": 3}},
                "order": ["equation", "digits"],
                "returns": {"type": "array", "items": {"type": "number"}},
            },
        }
    }
    assert recipe.data()["capabilities"] == [
        {"type": "module", "name": "math", "visibility": "high", "include": ["pi", "sin"]}
    ]


def test_an_agent_rebuilt_from_its_recipe_has_the_same_version() -> None:
    """AC-S4-5: A recipe written by one process means the same in another."""
    recipe = solver().recipe()

    rebuilt_agent = agent_of(Recipe.from_entry(recipe.entry()))

    assert rebuilt_agent.recipe().version == recipe.version
    assert rebuilt_agent.tasks["solve"].bind("x = 1") == {"equation": "x = 1", "digits": 3}


def test_another_name_or_content_is_another_version() -> None:
    """AC-S4-5: No two agents have one version."""
    versions = {solver().recipe().version, solver().replace(name="solver2").recipe().version}
    versions.add(solver().replace(primer="You guess.").recipe().version)

    assert len(versions) == 3


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        ((), {}, "task solve"),
        (("x", 1, 2), {}, "task solve"),
        ((3,), {}, "solve.equation"),
        (("x",), {"digits": "many"}, "solve.digits"),
        (("x",), {"digits": math.nan}, "solve.digits"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(args: Any, kwargs: Any, field: str) -> None:
    """The error names the parameter, and nothing starts."""
    with pytest.raises(InvalidValue) as refusal:
        solver().tasks["solve"].bind(*args, **kwargs)

    assert refusal.value.field == field


def _bodied(x: int) -> int:
    """Do it."""
    return x


def _silent(x: int) -> int: ...


def _untyped(x) -> int:  # type: ignore[no-untyped-def]  # on purpose
    """Do it."""


def _endless(*x: int) -> int:
    """Do it."""


def _unannotated(x: int):  # type: ignore[no-untyped-def]  # on purpose
    """Do it."""


def _with_object(x: object) -> int:
    """Do it."""


@pytest.mark.parametrize(
    "function", [_bodied, _silent, _untyped, _endless, _unannotated, _with_object, print, lambda: None]
)
def test_an_invalid_task_is_refused_when_it_is_declared(function: Callable[..., Any]) -> None:
    """A body, a missing docstring, missing types and types that are not data are errors before any call."""
    with pytest.raises(InvalidValue):
        Agent(name="solver").task(function)


def test_a_second_task_of_a_name_is_refused() -> None:
    """Otherwise the first task would silently change."""
    agent = solver()

    with pytest.raises(InvalidValue, match="no other task"):

        @agent.task
        def solve() -> str:
            """Solve it otherwise."""


def test_an_async_function_is_a_task_too() -> None:
    """The task's prompt is its docstring."""
    agent = Agent(name="solver")

    @agent.task
    async def solve() -> str:
        """Solve it."""

    assert isinstance(solve, Task)
    assert solve.prompt({}) == "Solve it."


@pytest.mark.parametrize("value", [lambda: 1, math, 3, "os.path:", "../os:x"])
def test_a_function_without_a_reference_is_no_capability(value: Any) -> None:
    """Another process must find the function by its name."""
    with pytest.raises(InvalidValue):
        Agent(name="solver").fn(value)


def test_a_task_of_a_module_is_a_capability_by_its_name() -> None:
    """Rows 150 and 202: `@lead.fn` above `@specialist.task` works while their module is being imported."""
    functions = [each.name for each in specialists.lead.capabilities if each.type == "function"]

    assert functions == ["tests.support.specialists:solve", "tests.support.specialists:half"]
    assert specialists.solve.agent is specialists.specialist
    with pytest.raises(InvalidValue, match="at the top level of a module"):
        Agent(name="other").fn(solver().tasks["solve"])
