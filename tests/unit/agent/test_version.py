"""Versions of definitions: equal for equal definitions, and different for any difference."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from ramet import Agent, StateGraph, chain
from ramet.agent.version import canonical, code_digest, version_of
from ramet.core.errors import InvalidValue, NotShippable

LIMIT = 3


def helper(number: int) -> int:
    """A function that `uses` calls."""
    return number + LIMIT


def uses(number: int, *, by: int = 2) -> int:
    """A function that calls another function of its module."""
    return helper(number) * by


def function_of(source: str, name: str = "f") -> Callable[..., Any]:
    """Return the function of a source text."""
    scope: dict[str, Any] = {"__name__": "somewhere"}
    exec(compile(source, "text", "exec", dont_inherit=True), scope)
    function: Callable[..., Any] = scope[name]
    return function


@pytest.mark.parametrize(
    "other",
    [
        "def f(a): return a + 2",
        "def f(a): return a - 1",
        "def f(a, b=1): return a + b",
        "def f(a): return a + 1.0",
        "async def f(a): return a + 1",
        "def f(a):\n    def g(): return 1\n    return a + g()",
        "N = 1\ndef f(a): return a + N",
        "def h(a): return a + 1\ndef f(a): return h(a)",
        "f = lambda a: a + 1 if a in {1, 2} else 2",
    ],
)
def test_different_code_has_another_version(other: str) -> None:
    """Each function differs from the plain one."""
    assert code_digest(function_of(other)) != code_digest(function_of("def f(a): return a + 1"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("N = 1\ndef f(a): return a + N", "N = 2\ndef f(a): return a + N"),
        ("def h(a): return 1\ndef f(a): return h(a)", "def h(a): return 2\ndef f(a): return h(a)"),
        ("def f(a, *, b=1): return b", "def f(a, *, b=2): return b"),
        ("def f(a): return (lambda: 1)()", "def f(a): return (lambda: 2)()"),
    ],
)
def test_the_version_covers_everything_that_a_function_uses(one: str, other: str) -> None:
    """Data and functions of its module, defaults and inner functions count."""
    assert code_digest(function_of(one)) != code_digest(function_of(other))
    assert code_digest(function_of(one)) == code_digest(function_of("\n\n# moved\n" + one))


def test_the_version_is_the_same_in_another_process() -> None:
    """Random hashes of text have no effect."""
    source = "def f(a): return a in {'x', 'y', 'z', 'w'} or {'k': [1, 'two']}"
    program = (
        "import sys; from ramet.agent.version import code_digest; scope = {'__name__': 'somewhere'};"
        "exec(compile(sys.argv[1], 'text', 'exec'), scope); print(code_digest(scope['f']))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, source],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert digests == {code_digest(function_of(source))}


def test_functions_that_call_each_other_have_versions() -> None:
    """The cycle ends."""
    one = function_of("def g(a): return f(a)\ndef f(a): return g(a)")

    assert code_digest(one) == code_digest(function_of("def g(a): return f(a)\ndef f(a): return g(a)"))


def test_partials_builtins_and_methods_have_versions() -> None:
    """Partials count by their parts, and the others by name."""
    assert code_digest(partial(uses, 1)) != code_digest(partial(uses, 2))
    assert len({code_digest(len), code_digest(sum), code_digest(str.upper), code_digest(str)}) == 4


def test_a_function_over_an_opaque_object_has_no_version() -> None:
    """A callable object and a function that closes over an object are refused."""
    value = object()

    class Callable_:
        def __call__(self) -> None: ...

    for function in (Callable_(), lambda: value):
        with pytest.raises(InvalidValue):
            code_digest(function)


def test_the_version_of_a_composition_covers_steps_and_routes() -> None:
    """A change at any depth gives another version."""

    def graph(route: Callable[..., Any]) -> Agent:
        graph = StateGraph().add_node("uses", uses).set_entry_point("uses")
        return chain(graph.add_conditional_edges("uses", route).compile())

    one = version_of(graph(function_of("def f(s): return 'uses'")))
    assert one == version_of(graph(function_of("def f(s): return 'uses'")))
    assert one != version_of(graph(function_of("def f(s): return '__end__'")))
    assert version_of(chain(uses), "a") != version_of(chain(uses), "b")


def test_equal_data_is_written_equally() -> None:
    """The order of keys does not matter."""
    assert canonical({"b": [1], "a": {"y": 1, "x": 2}}) == canonical({"a": {"x": 2, "y": 1}, "b": [1]})
    with pytest.raises(NotShippable):
        canonical([object()])
