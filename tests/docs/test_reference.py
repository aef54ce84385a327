"""docs/reference.md names everything that has a name, and nothing that is gone."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import get_args

import pytest

import ramet
from ramet.agent.definition import Agent
from ramet.agent.files.permissions import KEYS
from ramet.agent.history.compaction import Compaction
from ramet.agent.hooks.config import EVENTS, GATES
from ramet.agent.loop import QueryParams
from ramet.cli.parser import build_parser
from ramet.core.budget import Limits
from ramet.core.errors import RametError
from ramet.core.events import AnyEvent, Event
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import AgentResult, Result, Status, Usage
from ramet.core.policy.permissions import MODES
from ramet.core.policy.policy import Policy
from ramet.host.runtime import AgentRuntime
from ramet.host.sandbox.handle import AgentHandle
from ramet.host.session import Session
from ramet.models.prices import Price
from ramet.models.rate_limit import RetryPolicy
from ramet.services.config.load import SETTINGS
from ramet.spawn.handle import Handle
from ramet.store.state.mapping import Keys
from ramet.store.state.versioned import Versioned
from ramet.tools.spawn_request import SpawnRequest

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
#: Accepted in settings files and fired by nothing: the page says so of exactly these.
NEVER_FIRED: set[str] = set()


def table(page: str, heading: str) -> dict[str, str]:
    """The rows below a heading, up to the next one: the code that opens a row, and the whole row."""
    lines = iter(page.splitlines())
    if heading not in (line.lstrip("#").strip() for line in lines if line.startswith("#")):
        pytest.fail(f"reference.md has no heading {heading!r}")
    rows: dict[str, str] = {}
    for line in lines:
        if line.startswith("#"):
            break
        if found := re.match(r"\| `([^`]+)` \|", line):
            assert found[1] not in rows, f"{heading}: {found[1]} stands twice"
            rows[found[1]] = line
    return rows


def codes(row: str) -> set[str]:
    """Everything in a row that is written as code."""
    return set(re.findall(r"`([^`]+)`", row))


def parameters(make: Callable[..., object]) -> set[str]:
    """The settings that a constructor takes."""
    return set(inspect.signature(make).parameters)


def members(cls: type, *made: str) -> set[str]:
    """The public names of a class, and those that its objects get when they are made."""
    return {name for name in vars(cls) if not name.startswith("_")} | set(made)


def fields(cls: type) -> set[str]:
    """The fields of a dataclass or a msgspec struct that can be given."""
    if dataclasses.is_dataclass(cls):
        return {each.name for each in dataclasses.fields(cls) if each.init}
    return set(inspect.signature(cls).parameters)


TABLES: dict[str, set[str]] = {
    "Public names": set(ramet.__all__),
    "Session": parameters(Session),
    "Of a session": members(Session, "result", "project", "runtime"),
    "AgentRuntime": parameters(AgentRuntime),
    "Of a runtime": members(
        AgentRuntime,
        "working_dir",
        "user_dir",
        "grace_s",
        "clock",
        "gateway",
        "sandboxes",
        "journal",
        "stalls",
        "telemetry",
        "dynamic",
    ),
    "AgentHandle": members(AgentHandle),
    "AgentResult": fields(AgentResult),
    "Policy": fields(Policy),
    "Handle": members(Handle),
    "Limits": fields(Limits),
    "SpawnLimits": fields(SpawnLimits),
    "Agent": fields(Agent),
    "SpawnRequest": fields(SpawnRequest),
    "Compaction": fields(Compaction),
    "RetryPolicy": fields(RetryPolicy),
    "Price": fields(Price),
    "QueryParams": fields(QueryParams),
    "Result": fields(Result),
    "Usage": fields(Usage),
    "Of a state": members(Versioned) | members(Keys),
    "Every event has": fields(Event),
    "Hook events": set(EVENTS),
    "ramet.yaml": {setting.name for setting in SETTINGS},
}


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text()


@pytest.mark.parametrize("heading", TABLES)
def test_a_table_names_exactly_what_the_code_has(page: str, heading: str) -> None:
    """A new name without its line in the reference fails, and so does a line whose name is gone."""
    assert set(table(page, heading)) == TABLES[heading]


def test_what_an_object_gets_when_it_is_made_is_listed(page: str) -> None:
    """Public attributes that no class body shows are in the tables as well."""
    runtime = AgentRuntime()
    session = Session(ramet.ScriptedModel([]), runtime=runtime)
    for made, heading in ((runtime, "Of a runtime"), (session, "Of a session")):
        assert {name for name in vars(made) if not name.startswith("_")} <= set(table(page, heading))


def test_every_status_is_named(page: str) -> None:
    """Whoever reads `Status` finds each of its values."""
    assert set(Status) <= codes(table(page, "Public names")["Status"])


def test_every_event_is_there_with_its_fields(page: str) -> None:
    """Each kind of event has its row: tag, class, and exactly its own fields."""
    assert isinstance(AnyEvent, UnionType)
    shown = {tag: row.split("|")[2:4] for tag, row in table(page, "Kinds").items()}
    there = {
        str(cls.__struct_config__.tag): (cls.__name__, set(cls.__struct_fields__) - set(Event.__struct_fields__))
        for cls in get_args(AnyEvent)
    }
    assert {tag: (name.strip(" `"), codes(own)) for tag, (name, own) in shown.items()} == there


def test_gates_and_what_nothing_fires_are_said_of_the_right_hook_events(page: str) -> None:
    """The reference says of each hook event whether it fails closed, and does not promise one that never comes."""
    rows = table(page, "Hook events")
    assert {event for event, row in rows.items() if "| means no |" in row} == GATES
    assert {event for event, row in rows.items() if "| never yet |" in row} == NEVER_FIRED == set(EVENTS) - fired()


def fired() -> set[str]:
    """The hook events that some code fires, by their names beside a `fire(`, an `event =` or a `return`."""
    text = "\n".join(file.read_text() for file in Path(ramet.__path__[0]).rglob("*.py"))
    places = re.findall(r"^.*(?:\.fire\(|event = |event, hooks = |return \(?\").*$", text, re.MULTILINE)
    return {event for event in EVENTS if any(f'"{event}"' in line for line in places)}


def test_every_key_and_mode_of_permissions_is_there(page: str) -> None:
    """The table has the keys that are read, and no other; the modes stand in the row of their key."""
    rows = table(page, "Permissions")

    assert set(rows) == set(KEYS)
    assert all(f"`{mode}`" in rows["defaultMode"] for mode in MODES)


def test_every_error_is_there_with_what_it_carries(page: str) -> None:
    """Each error class that a caller can meet has its row and names what its objects carry."""
    rows = table(page, "Errors")
    errors = {cls.__name__: cls for cls in error_classes()}
    assert set(rows) == set(errors)
    for name, cls in errors.items():
        carried = set(inspect.signature(cls.__init__).parameters) - {
            "args",
            "kwargs",
            "self",
            "package",
            "code",
            "repo",
        }
        assert carried <= codes(rows[name]), name


def error_classes() -> Iterator[type[RametError]]:
    """RametError and all below it, wherever they are defined."""
    for module in pkgutil.walk_packages(ramet.__path__, "ramet."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    waiting: list[type[RametError]] = [RametError]
    for cls in waiting:
        waiting += cls.__subclasses__()
        if cls.__module__.startswith("ramet."):
            yield cls


def test_every_command_is_there_with_its_options(page: str) -> None:
    """Each command has its row, and a table with exactly its arguments and options."""
    parsers = dict(commands("ramet", build_parser()))
    leaves = {name for name in parsers if name == "ramet" or not any(each.startswith(f"{name} ") for each in parsers)}
    assert set(table(page, "Command line")) == leaves
    for name in leaves:
        assert set(table(page, name)) == set(options(parsers[name])), name


def commands(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A command and all below it, by what is typed."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from commands(f"{name} {verb}", below)


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What a command takes, help aside."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        yield action.option_strings[-1] if action.option_strings else str(action.metavar)


def test_every_setting_is_there_with_its_variable(page: str) -> None:
    """Each setting of a server has its one name in the environment beside it."""
    rows = table(page, "ramet.yaml")
    assert {name: row.split("|")[2].strip(" `") for name, row in rows.items()} == {
        setting.name: setting.variable for setting in SETTINGS
    }


def test_a_missing_row_is_noticed(page: str) -> None:
    """The comparison is not vacuous: without its row, an event is missed."""
    without = "\n".join(line for line in page.splitlines() if not line.startswith("| `run_spawned` |"))
    assert "run_spawned" in table(page, "Kinds")
    assert "run_spawned" not in table(without, "Kinds")
