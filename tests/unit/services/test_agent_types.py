"""Agent types by name, with plugins of installed distributions."""

from __future__ import annotations

import importlib.metadata
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.services.agent_types.function.type import FunctionType
from ramet.services.agent_types.llm.type import LlmType
from ramet.services.agent_types.registry import GROUP, AgentTypes
from tests.support.echo_agents import EchoType

Install = Callable[[str, str], None]

PLUGIN = """
from msgspec import Struct
from tests.support.echo_agents import EchoType

class Loose(Struct):
    "Takes whatever comes."

class Parrot(EchoType):
    name = "parrot"

class Nameless(EchoType):
    name = "somebody"

class Open(EchoType):
    name = "open"
    spawn_info = Loose

class Formless(EchoType):
    name = "formless"
    transport_formats = ()

class Wordy(EchoType):
    name = "wordy"
    transport_formats = "words"

class Deaf(EchoType):
    name = "deaf"
    open = None

class Loosely(EchoType):
    name = "loosely"
    operations = {"any": Loose}

made = Parrot()
number = 7
"""


@pytest.fixture
def install(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution with these entry points on the path."""

    def put(name: str, points: str) -> None:
        folder = tmp_path / name
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}\n")
        (folder / f"{name}_code.py").write_text(PLUGIN)
        monkeypatch.syspath_prepend(folder)

    return put


def test_the_types_that_ship_are_types() -> None:
    """The types that the server was given are found by name."""
    types = AgentTypes([LlmType(), FunctionType(), EchoType()])
    assert list(types) == ["echo", "function", "llm"]
    assert isinstance(types["llm"], LlmType)


def test_a_plugin_is_found_by_its_entry_point(install: Install) -> None:
    """The plugin's class is instantiated once."""
    install("birds", "parrot = birds_code:Parrot")
    types = AgentTypes([EchoType()])
    assert list(types) == ["echo", "parrot"]
    agent_type = types["parrot"]
    assert agent_type.name == "parrot"
    assert types["parrot"] is agent_type


def test_installed_distributions_are_read_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn of an agent asks for a type, and a read of the distributions takes milliseconds."""
    install("once", "parrot = once_code:Parrot")
    types, reads = AgentTypes([EchoType()]), 0
    original = importlib.metadata.entry_points

    def counted(**selected: str) -> Any:
        nonlocal reads
        reads += 1
        return original(**selected)

    monkeypatch.setattr(importlib.metadata, "entry_points", counted)
    for _ in range(3):
        assert types["echo"].name == "echo"
        assert "parrot" in types
        assert types["parrot"].name == "parrot"
        assert "dog" not in types
        assert list(types) == ["echo", "parrot"]

    assert reads == 1


def test_an_object_may_be_a_plugin(install: Install) -> None:
    """An entry point may name an object instead of a class."""
    install("objects", "parrot = objects_code:made")
    assert AgentTypes([])["parrot"].name == "parrot"


def test_an_unknown_agent_type_is_no_key(install: Install) -> None:
    """The known names include plugins: the services name them in a refusal."""
    install("unknown", "parrot = unknown_code:Parrot")
    types = AgentTypes([EchoType()])
    with pytest.raises(KeyError, match="dog"):
        types["dog"]
    assert list(types) == ["echo", "parrot"]


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ("gone = wrong_nowhere:Thing", "ModuleNotFoundError"),
        ("gone = wrong_code:Missing", "AttributeError"),
        ("number = wrong_code:number", "name"),
        ("nameless = wrong_code:Nameless", "name: 'somebody' is not accepted; expected 'nameless'"),
        ("open = wrong_code:Open", "spawn_info: 'Loose'"),
        ("formless = wrong_code:Formless", "transport_formats"),
        ("wordy = wrong_code:Wordy", "transport_formats: 'words'"),
        ("deaf = wrong_code:Deaf", "open"),
        ("loosely = wrong_code:Loosely", "operations"),
    ],
)
def test_a_plugin_that_is_not_an_agent_type_is_refused_by_its_entry_point(
    install: Install, point: str, reason: str
) -> None:
    """The error names the entry point, its distribution and the fault; other types still work."""
    install("wrong", point)
    types, name = AgentTypes([EchoType()]), point.partition(" ")[0]
    with pytest.raises(InvalidValue) as refusal:
        types[name]
    assert refusal.value.field.startswith(f"entry point {name!r} in {GROUP!r} of wrong")
    assert reason in str(refusal.value)
    assert types["echo"].name == "echo"


def test_two_plugins_of_one_name_are_both_refused(install: Install) -> None:
    """The error names both entry points."""
    install("first", "parrot = first_code:Parrot")
    install("second", "parrot = second_code:Parrot")
    with pytest.raises(InvalidValue, match="first_code:Parrot of first"):
        AgentTypes([])["parrot"]


def test_a_type_given_to_the_server_goes_before_a_plugin(install: Install) -> None:
    """An installed package cannot replace a type of the server."""
    install("usurper", "echo = usurper_code:Parrot")
    echo_type = EchoType()
    assert AgentTypes([echo_type])["echo"] is echo_type


def test_two_types_of_one_name_are_refused() -> None:
    """The second type of a name raises InvalidValue when the registry is made."""
    with pytest.raises(InvalidValue, match="echo"):
        AgentTypes([EchoType(), EchoType()])
