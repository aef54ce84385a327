"""A child's capabilities are never more than it asked for, and never more than its creator has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import InvalidValue
from ramet.core.policy.capabilities import Capability, intersect

_MODULES = ("math", "os")
_NAMES = ("sin", "cos", "pi", "_x", "tan", "s", "c")
_PATTERNS = ("s*", "*n", "*", "?os", "_*")
_parts = st.sampled_from((*_NAMES, *_PATTERNS))
_modules = st.builds(
    lambda name, include, exclude: Capability("module", name, include=include, exclude=tuple(exclude)),
    st.sampled_from(_MODULES),
    st.none() | st.lists(_parts, min_size=1, max_size=4).map(tuple),
    st.lists(_parts, max_size=2),
)
_functions = st.builds(
    lambda module, name: Capability("function", f"{module}:{name}"), st.sampled_from(_MODULES), st.sampled_from(_NAMES)
)
_sets = st.lists(_modules | _functions, max_size=4)


def _names(capabilities: tuple[Capability, ...] | list[Capability]) -> set[tuple[str, str]]:
    """Return every name that a set of capabilities reaches."""
    return {
        (module, name)
        for module in _MODULES
        for name in (*_NAMES, "son")
        for each in capabilities
        if (each.name == module and each.has(name)) or each.name == f"{module}:{name}"
    }


@given(_sets, _sets)
def test_a_child_never_gets_what_its_creator_lacks(asked: list[Capability], held: list[Capability]) -> None:
    """The grant has no name outside either set, and asking for the grant again changes nothing."""
    granted = intersect(asked, held).capabilities

    assert _names(granted) <= _names(asked) & _names(held)
    assert _names(intersect(granted, held).capabilities) == _names(granted)


def test_common_names_are_granted_and_dropped_names_are_listed() -> None:
    """AC-S4-4: a child that asks for sin, tan and pi of one that has sin, cos and pi gets sin and pi."""
    asked = Capability("module", "math", include=("sin", "tan", "pi"))
    held = Capability("module", "math", include=("sin", "cos", "pi"))

    granted = intersect([asked], [held])

    assert [each.include for each in granted.capabilities] == [("pi", "sin")]
    assert granted.dropped_names == ("module math.tan",)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("module", "../os"),
        ("module", "os\0"),
        ("module", "a" * 1_000_000),
        ("function", "os:"),
        ("function", "os:a b"),
        ("class", ""),
        ("tool", "rm -rf"),
        ("object", "os"),
    ],
)
def test_an_invalid_name_is_refused(kind: str, name: str) -> None:
    """The error names the field of the capability."""
    with pytest.raises(InvalidValue, match=r"^capability\."):
        Capability(kind, name)  # type: ignore[arg-type]  # on purpose
