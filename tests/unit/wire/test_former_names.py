"""Tests of `wire/code/former_names.py`: a packed function finds the present class by an earlier name."""

from __future__ import annotations

from importlib import import_module

import pytest

from ramet.core.policy.policy import Policy
from ramet.tools.context import require_current_call
from ramet.tools.decisions import SafetyDecision
from ramet.tools.spawn_request import SpawnRequest
from ramet.wire.code import former_names


def load_by_name(module: str, name: str) -> object:
    """Unpickle a reference to a class or function."""
    return former_names.loads(f"c{module}\n{name}\n.".encode())


def test_a_class_is_found_by_the_earlier_name_of_its_module() -> None:
    """The present name of the module works, too."""
    assert load_by_name("ramet.core.policy", "Policy") is Policy
    assert load_by_name("ramet.core.policy.policy", "Policy") is Policy


def test_a_function_is_found_by_its_earlier_name() -> None:
    """The present name works, too."""
    assert load_by_name("ramet.tools.context", "calling") is require_current_call
    assert load_by_name("ramet.tools.context", "require_current_call") is require_current_call


def test_a_class_that_moved_alone_is_found_by_its_former_module() -> None:
    """Under its present name, and under the name that it had there."""
    assert load_by_name("ramet.tools.context", "SpawnRequest") is SpawnRequest
    assert load_by_name("ramet.tools.context", "GateWord") is SafetyDecision


def test_an_unknown_name_is_an_error() -> None:
    """The error is that of `pickle`."""
    with pytest.raises(AttributeError):
        load_by_name("ramet.core.policy", "Policies")


@pytest.mark.parametrize("module", sorted(former_names.MODULES.values()))
def test_each_present_module_exists(module: str) -> None:
    """A later move must change the table."""
    assert import_module(module).__name__ == module


@pytest.mark.parametrize(("module", "name"), sorted((module, new) for (module, _), new in former_names.NAMES.items()))
def test_each_present_name_exists(module: str, name: str) -> None:
    """A later rename must change the table."""
    assert hasattr(import_module(former_names.MOVED.get((module, name), module)), name)


@pytest.mark.parametrize(("name", "module"), sorted((name, module) for (_, name), module in former_names.MOVED.items()))
def test_each_moved_name_exists(name: str, module: str) -> None:
    """A later move must change the table."""
    assert hasattr(import_module(module), name)
