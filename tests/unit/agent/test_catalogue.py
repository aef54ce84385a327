"""Lists of capabilities in a primer: as detailed as their visibility, and bounded."""

from __future__ import annotations

import fractions
import math
import types
from typing import Any

import pytest

from ramet.agent.capabilities.prompt import MAX_DOC, MAX_LISTING, MAX_PARTS, capability_listing
from ramet.core.policy.capabilities import Capability, Visibility
from ramet.tools.python import python_tool


def listing(type: Any, name: str, visibility: Visibility, value: Any, **more: Any) -> str:
    return capability_listing([(Capability(type, name, visibility, **more), value)])


def test_high_shows_names_signatures_and_docstrings() -> None:
    """A module shows its included names alone."""
    assert listing("module", "math", "high", math, include=("sin", "pi")).splitlines() == [
        "- module math",
        "  This module provides access to the mathematical functions",
        "  defined by the C standard.",
        "  - pi",
        "  - sin(x, /)",
        "    Return the sine of x (measured in radians).",
    ]


def test_medium_shows_names_and_signatures() -> None:
    """Modules, functions and classes show them; a class with included parts shows these."""
    assert listing("module", "math", "medium", math, include=("sin", "pi")) == "- module math\n  - pi\n  - sin(x, /)"
    assert listing("function", "math:sin", "medium", math.sin) == "- function sin(x, /)"
    assert listing("class", "fractions:Fraction", "medium", fractions.Fraction).startswith(
        "- class Fraction(numerator=0"
    )
    part = listing("class", "fractions:Fraction", "medium", fractions.Fraction, include=("limit_denominator",))
    assert part.splitlines()[1:] == ["  - limit_denominator(self, max_denominator=1000000)"]


def test_low_shows_names_alone() -> None:
    """Each capability takes one line."""
    assert listing("module", "math", "low", math) == "- module math"
    assert listing("tool", "python", "low", python_tool()) == "- tool python"


def test_a_tool_shows_its_arguments() -> None:
    """High visibility shows its description, too."""
    assert listing("tool", "python", "medium", python_tool()) == "- tool python(code, timeout)"
    assert "Run Python in your sandbox." in listing("tool", "python", "high", python_tool())


@pytest.mark.parametrize("visibility", ["high", "medium", "low"])
def test_a_listing_is_bounded(visibility: Visibility) -> None:
    """Names are shown as long as they fit, then their number."""

    def loud() -> None: ...

    loud.__doc__ = "x" * 10_000
    module = types.ModuleType("many")
    module.__dict__.update({f"name_{n}": loud for n in range(500)})
    one = listing("module", "many", visibility, module)
    assert len(one) < MAX_PARTS * (MAX_DOC + 100)
    many = capability_listing([(Capability("module", f"m{n}", visibility), module) for n in range(5_000)])
    assert len(many) < MAX_LISTING + 20
    assert many.splitlines()[-1].startswith("- and ")


def test_a_capability_that_fails_on_inspection_is_listed_by_name() -> None:
    """A failing attribute or signature does not hide the others."""

    class Odd(types.ModuleType):
        def __dir__(self) -> list[str]:
            return ["gone", "there"]

        def there(self):  # type: ignore[no-untyped-def]  # its signature is what is shown
            """Here."""

    class Worse:
        @property
        def __signature__(self) -> Any:
            raise ValueError

        def __call__(self) -> None: ...

    assert listing("module", "odd", "medium", Odd("odd")) == "- module odd\n  - there()"
    assert listing("function", "m:worse", "medium", Worse()) == "- function worse(…)"
