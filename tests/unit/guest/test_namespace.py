"""The names that code gets for its agent's capabilities, and the errors for all others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ramet.agent.definition import Agent
from ramet.core.errors import AgentNotResolved
from ramet.core.policy.capabilities import Capability
from ramet.guest.namespace import namespace

SOME = Capability("module", "math", include=("pi", "s*"), exclude=("sqrt",))


def run(code: str, *capabilities: Capability) -> dict[str, Any]:
    """Run code with these capabilities and return its names afterwards."""
    names = namespace("a", capabilities)
    exec(code, names)
    return names


def test_a_module_shows_its_included_names_only() -> None:
    """Names and patterns include; any other name is an AttributeError that lists the included ones."""
    names = namespace("a", [SOME])

    assert names["math"].sin(0) == 0
    assert names["math"].pi == math.pi
    assert dir(names["math"]) == ["pi", "sin", "sinh"]
    for name in ("tan", "sqrt", "_x"):
        with pytest.raises(AttributeError, match="not among the capabilities; available: pi, sin"):
            getattr(names["math"], name)
    assert names["math"].__name__ == "math"


def test_a_view_cannot_be_changed() -> None:
    """Names can be neither set nor deleted: other code sees the module unchanged."""
    view = namespace("a", [SOME])["math"]

    with pytest.raises(AttributeError, match="read only"):
        view.sin = 1
    with pytest.raises(AttributeError, match="read only"):
        del view.pi
    assert math.sin(0) == 0


def test_an_import_gives_the_same_view() -> None:
    """Each form of import gives the view."""
    names = run("import math as m\nfrom math import sin, pi as p\nfrom math import *\nimport math", SOME)

    assert names["m"] is names["math"]
    assert names["sin"] is math.sin
    assert names["p"] == names["pi"] == math.pi
    assert "tan" not in names


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os", "module 'os' is not among the capabilities; available: __future__, dataclasses, enum, math"),
        ("from math import tan", "'tan' of module 'math' is not among the capabilities; available: pi, sin"),
        ("from math import sqrt", "'sqrt' of module 'math'"),
        ("import math.sin", "module 'math.sin' is not"),
        ("from . import x", "relative"),
        ("from os import *", "module 'os'"),
        ("import xml.etree.ElementTree", "module 'xml"),
        ("__import__('subprocess')", "module 'subprocess'"),
        ("from typing import sys_of_it", "'sys_of_it' of module 'typing'"),
    ],
)
def test_a_name_without_a_capability_cannot_be_imported(code: str, says: str) -> None:
    """The ImportError lists what can be imported."""
    with pytest.raises(ImportError, match=says):
        run(code, SOME)


def test_modules_for_declaring_types_can_always_be_imported() -> None:
    """Such modules need no capability, since types of tasks are written with them."""
    code = """
from __future__ import annotations
from dataclasses import dataclass
from enum import Enum
from typing import Literal
@dataclass
class Point:
    x: int
point = Point(1)
"""
    assert run(code)["point"].x == 1


def test_a_module_in_a_package_has_its_full_and_its_last_name() -> None:
    """The package shows nothing else."""
    tree = Capability("module", "xml.etree.ElementTree", include=("fromstring",))
    names = run(
        "import xml.etree.ElementTree\nimport xml.etree.ElementTree as E\nfrom xml.etree import ElementTree", tree
    )

    assert names["xml"].etree.ElementTree is names["E"] is names["ElementTree"]
    assert names["E"].fromstring("<a/>").tag == "a"
    with pytest.raises(AttributeError, match=r"xml\.dom is not among"):
        _ = names["xml"].dom


def test_a_module_includes_submodules_but_not_its_imports() -> None:
    """`json.decoder` belongs to `json`, and `json.codecs` does not."""
    json = Capability("module", "json")
    names = run("import json.decoder\nfrom json import decoder", json)

    assert names["decoder"].JSONDecoder is names["json"].decoder.JSONDecoder
    with pytest.raises(AttributeError, match=r"json\.codecs is not among"):
        _ = names["json"].codecs
    assert "codecs" not in dir(names["json"])


def test_functions_and_classes_are_available_by_their_names() -> None:
    """Modules of functions and classes show nothing else."""
    sqrt = Capability("function", "math:sqrt")
    fraction = Capability("class", "fractions:Fraction")
    names = run("from fractions import Fraction as F\nimport math", sqrt, fraction)

    assert names["sqrt"](4) == 2
    assert names["F"] is names["Fraction"]
    with pytest.raises(AttributeError, match=r"math.sin is not among the capabilities; available: sqrt"):
        _ = names["math"].sin


def test_a_class_shows_its_included_members_only() -> None:
    """Objects of the class do so, too."""
    some = Capability("class", "fractions:Fraction", include=("limit_denominator",))
    names = namespace("a", [some])

    third = names["Fraction"](1, 3)
    assert third.limit_denominator(3) == third.limit_denominator(3)
    with pytest.raises(AttributeError, match="numerator is not among"):
        _ = third.numerator
    with pytest.raises(AttributeError, match="read only"):
        third.x = 1


def test_the_class_agent_needs_no_module_name() -> None:
    """Recipes write it so."""
    assert namespace("a", [Capability("class", "Agent")])["Agent"] is Agent


def test_two_capabilities_of_one_name_get_no_short_name() -> None:
    """Both can be imported from their modules."""
    names = run(
        "from os.path import join\nfrom shlex import join as other",
        Capability("function", "os.path:join"),
        Capability("function", "shlex:join"),
    )

    assert "join" not in namespace("a", [Capability("function", "os.path:join"), Capability("function", "shlex:join")])
    assert names["join"] is not names["other"]


def test_two_patterns_of_one_module_make_one_view() -> None:
    """The view shows the names of both."""
    view = namespace(
        "a", [Capability("module", "math", include=("sin",)), Capability("module", "math", include=("pi",))]
    )["math"]

    assert dir(view) == ["pi", "sin"]


@pytest.mark.parametrize(
    ("capability", "says"),
    [
        (Capability("module", "not_there"), "capability 'module not_there' cannot be imported in the sandbox"),
        (Capability("module", "math", include=("sin", "gone")), "has no 'gone'"),
        (Capability("function", "math:gone"), "'function math:gone' has no 'gone'"),
        (Capability("function", "math:pi"), "is not a function"),
        (Capability("class", "math:sin"), "is not a class"),
        (Capability("function", "bare"), "names no module"),
        (Capability("class", "not_there:Class"), "cannot be imported"),
    ],
)
def test_a_missing_capability_is_refused_by_name(capability: Capability, says: str) -> None:
    """The error comes before any code runs."""
    with pytest.raises(AgentNotResolved, match=says):
        namespace("a", [capability])


def test_a_tool_has_no_name_in_the_code() -> None:
    """The model calls tools."""
    assert set(namespace("a", [Capability("tool", "Read")])) == {"__builtins__"}
