"""docs/reference/ names exactly what the code has."""

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
import ramet.testing
from ramet.agent.definition import Agent
from ramet.agent.files.permissions import KEYS
from ramet.agent.history.compaction import Compaction
from ramet.agent.hooks.config import EVENTS, GATES
from ramet.agent.loop import QueryParams
from ramet.cli.parser import build_parser
from ramet.core.errors import RametError
from ramet.core.events import AnyEvent, Event
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.outcome import AgentResult, Result, Status, Usage
from ramet.core.policy.permissions import MODES
from ramet.core.policy.policy import Policy
from ramet.host.recorded_runtime import RecordedRuntime
from ramet.host.runtime import AgentRuntime
from ramet.host.runtime_base import RuntimeBase
from ramet.host.sandbox.handle import AgentHandle
from ramet.host.session import Session
from ramet.models.prices import Price
from ramet.models.rate_limit import RetryPolicy
from ramet.services.config.load import SETTINGS
from ramet.spawn.handle import Handle
from ramet.store.state.versioned import Versioned
from ramet.tools.spawn_request import SpawnRequest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))
#: Accepted in settings files and fired by nothing: the page says so of exactly these.
NEVER_FIRED: set[str] = set()


def table(page: str, heading: str) -> dict[str, str]:
    """Return the rows below a heading, up to the next one: the code that opens a row, mapped to the row."""
    lines = iter(page.splitlines())
    if heading not in (line.lstrip("#").strip() for line in lines if line.startswith("#")):
        pytest.fail(f"docs/reference/ has no heading {heading!r}")
    rows: dict[str, str] = {}
    for line in lines:
        if line.startswith("#"):
            break
        if found := re.match(r"\| `([^`]+)` \|", line):
            assert found[1] not in rows, f"{heading}: {found[1]} stands twice"
            rows[found[1]] = line
    return rows


def code_spans(row: str) -> set[str]:
    """Return every code span in a row."""
    return set(re.findall(r"`([^`]+)`", row))


def parameters(make: Callable[..., object]) -> set[str]:
    """Return the parameters of a constructor."""
    return set(inspect.signature(make).parameters)


def members(cls: type, *made: str) -> set[str]:
    """Return the public names of a class, and those of attributes that its objects get in the constructor."""
    return {name for name in vars(cls) if not name.startswith("_")} | set(made)


def fields(cls: type) -> set[str]:
    """Return the fields of a dataclass or a msgspec struct that a caller can set."""
    if dataclasses.is_dataclass(cls):
        return {each.name for each in dataclasses.fields(cls) if each.init}
    return set(inspect.signature(cls).parameters)


TABLES: dict[str, set[str]] = {
    "Public names": set(ramet.__all__),
    "Names for tests": set(ramet.testing.__all__),
    "Session": parameters(Session),
    "Of a session": members(Session, "result", "project", "runtime"),
    "AgentRuntime": parameters(AgentRuntime),
    "Of a runtime": members(RuntimeBase)
    | members(RecordedRuntime)
    | members(
        AgentRuntime,
        "working_dir",
        "user_dir",
        "grace_s",
        "clock",
        "gateway",
        "sandboxes",
        "journal",
        "notifier",
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
    "Of a state": members(Versioned),
    "Every event has": fields(Event),
    "Hook events": set(EVENTS),
    "ramet.yaml": {setting.name for setting in SETTINGS},
}


@pytest.fixture(scope="module")
def page() -> str:
    return "\n".join(each.read_text() for each in PAGES)


@pytest.mark.parametrize("heading", TABLES)
def test_a_table_names_exactly_what_the_code_has(page: str, heading: str) -> None:
    """A name without its row in the reference fails, and so does a row without its name."""
    assert set(table(page, heading)) == TABLES[heading]


def test_every_public_attribute_of_an_object_is_listed(page: str) -> None:
    """Public attributes of a runtime or session that no class body shows are in the tables."""
    runtime = AgentRuntime()
    session = Session(ramet.ScriptedModel([]), runtime=runtime)
    for made, heading in ((runtime, "Of a runtime"), (session, "Of a session")):
        assert {name for name in vars(made) if not name.startswith("_")} <= set(table(page, heading))


def test_every_status_is_named(page: str) -> None:
    """The row of `Status` shows each of its values."""
    assert set(Status) <= code_spans(table(page, "Public names")["Status"])


def test_every_event_is_listed_with_its_fields(page: str) -> None:
    """Each kind of event has its row: tag, class, and exactly its own fields."""
    assert isinstance(AnyEvent, UnionType)
    shown = {tag: row.split("|")[2:4] for tag, row in table(page, "Kinds").items()}
    there = {
        str(cls.__struct_config__.tag): (cls.__name__, set(cls.__struct_fields__) - set(Event.__struct_fields__))
        for cls in get_args(AnyEvent)
    }
    assert {tag: (name.strip(" `"), code_spans(own)) for tag, (name, own) in shown.items()} == there


def test_every_hook_event_shows_whether_it_gates_and_whether_it_fires(page: str) -> None:
    """The row of a hook event tells whether it fails closed, and whether any code fires it."""
    rows = table(page, "Hook events")
    assert {event for event, row in rows.items() if "| means no |" in row} == GATES
    assert (
        {event for event, row in rows.items() if "| never yet |" in row} == NEVER_FIRED == set(EVENTS) - fired_events()
    )


def fired_events() -> set[str]:
    """Return the hook events that some code fires, found beside a `fire(`, an `event =` or a `return`."""
    text = "\n".join(file.read_text() for file in Path(ramet.__path__[0]).rglob("*.py"))
    lines = re.findall(r"^.*(?:\.fire\(|event = |event, hooks = |return \(?\").*$", text, re.MULTILINE)
    return {event for event in EVENTS if any(f'"{event}"' in line for line in lines)}


def test_every_key_and_mode_of_permissions_is_listed(page: str) -> None:
    """The table has exactly the keys that are read, and the modes are in the row of their key."""
    rows = table(page, "Permissions")

    assert set(rows) == set(KEYS)
    assert all(f"`{mode}`" in rows["defaultMode"] for mode in MODES)


def test_every_error_is_listed_with_its_values(page: str) -> None:
    """Each error class that a caller can meet has its row, with the values that its objects carry."""
    rows = table(page, "Errors")
    errors = {cls.__name__: cls for cls in error_classes()}
    assert set(rows) == set(errors)
    for name, cls in errors.items():
        carried = set(inspect.signature(cls.__init__).parameters) - {
            "args",
            "kwargs",
            "self",
            "package",
            "command",
            "code",
            "repo",
        }
        assert carried <= code_spans(rows[name]), name


def error_classes() -> Iterator[type[RametError]]:
    """Yield RametError and every subclass of it in ramet."""
    for module in pkgutil.walk_packages(ramet.__path__, "ramet."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    waiting: list[type[RametError]] = [RametError]
    for cls in waiting:
        waiting += cls.__subclasses__()
        if cls.__module__.startswith("ramet."):
            yield cls


def test_every_command_is_listed_with_its_options(page: str) -> None:
    """Each command has its row, and a table with exactly its arguments and options."""
    parsers = dict(commands("ramet", build_parser()))
    leaves = {name for name in parsers if name == "ramet" or not any(each.startswith(f"{name} ") for each in parsers)}
    assert set(table(page, "Command line")) == leaves
    for name in leaves:
        assert set(table(page, name)) == set(options(parsers[name])), name


def commands(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield a command and every command below it, by the words that a user types."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from commands(f"{name} {verb}", below)


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the arguments and options of a command, except for help."""
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
            continue
        yield action.option_strings[-1] if action.option_strings else str(action.metavar)


def test_every_setting_is_listed_with_its_variable(page: str) -> None:
    """Each setting of a server has its row, with its environment variable."""
    rows = table(page, "ramet.yaml")
    assert {name: row.split("|")[2].strip(" `") for name, row in rows.items()} == {
        setting.name: setting.variable for setting in SETTINGS
    }


def test_a_missing_row_is_noticed(page: str) -> None:
    """Control: a table without the row of an event does not have that event."""
    without = "\n".join(line for line in page.splitlines() if not line.startswith("| `run_spawned` |"))
    assert "run_spawned" in table(page, "Kinds")
    assert "run_spawned" not in table(without, "Kinds")
