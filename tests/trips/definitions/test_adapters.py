"""Adapters of other packages: stores and policy adapters by name, and the conformance suites that check them."""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import ramet
from ramet.core.errors import InvalidValue
from ramet.core.events import PolicyDecided
from ramet.services.config.adapters import find_policy_adapter, find_store
from ramet.services.config.build import server_of
from ramet.services.config.load import load
from ramet.services.config.settings import StoreAdapter
from ramet.services.server.server import Server
from ramet.testing.conformance import policy_adapters
from tests.support import house_rules
from tests.support.plain_store import PlainStore
from tests.support.serve_process import plugin
from tests.support.serving import short_folder
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import BACKENDS
from tests.trips.kits.sessions import of_kind

POINTS = """\
[ramet.stores]
plain = tests.support.plain_store:by_url
broken = tests.support.no_such_module:by_url
[ramet.policy_adapters]
house = tests.support.house_rules:HouseRules
nothing = tests.support.house_rules:no_adapter
"""


@pytest.fixture
def entry_points(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with entry points for stores and policy adapters."""
    monkeypatch.syspath_prepend(str(plugin(tmp_path, POINTS)))


def configured_server(folder: pathlib.Path, settings: str) -> Server:
    """Return a server with these settings, not started."""
    file = folder / "ramet.yaml"
    file.write_text(settings)
    return server_of(load(file, {}, {"working_dir": str(folder)}), {})


def run_module(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m` with the module, and return what it printed."""
    root = pathlib.Path(__file__).parents[3]
    command = [sys.executable, "-m", name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=root, check=False, timeout=360)


# --- stores


def test_the_store_suite_checks_a_store_of_another_package() -> None:
    """One command runs every check, without a test framework."""
    process_result = run_module("ramet.testing.conformance.store", "tests.support.plain_store:store_fixture")

    assert process_result.returncode == 0, process_result.stdout + process_result.stderr
    assert process_result.stdout.endswith(" checks, 0 failed\n")
    assert "passed  all_or_nothing" in process_result.stdout


def test_the_store_suite_names_a_failed_check() -> None:
    """The line names the check and the reason; the status is 1."""
    process_result = run_module(
        "ramet.testing.conformance.store",
        "tests.support.plain_store:broken_store_fixture",
        "an_atomic_write_stores_everything",
        "the_head_is_the_newest_cursor",
    )

    assert process_result.returncode == 1
    assert (
        process_result.stdout == "failed  an_atomic_write_stores_everything: the documents exist\n"
        "passed  the_head_is_the_newest_cursor\n"
        "2 checks, 1 failed\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "usage:"),
        (["tests.support.plain_store"], "usage:"),
        (["--help"], "usage:"),
        (["tests.support.no_such_module:store_fixture"], "cannot be loaded: No module named"),
        (["tests.support.plain_store:nothing"], "cannot be loaded: module"),
        (["tests.support.plain_store:_POLL_S"], "not a function"),
        (
            ["tests.support.plain_store:store_fixture", "no_check"],
            "'no_check' is not a check; there are: tickets_count_from_one",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_wrong_usage_of_the_suite_gets_one_line(arguments: Sequence[str], words: str) -> None:
    """The status is 2, and no traceback appears."""
    process_result = run_module("ramet.testing.conformance.store", *arguments)

    assert process_result.returncode == 2
    assert words in process_result.stderr
    assert process_result.stderr.count("\n") == 1
    assert not process_result.stdout


async def test_a_server_keeps_its_journal_in_a_store_of_another_package(entry_points: None) -> None:
    """The scheme of the URL is the name of the entry point; another server finds the result in that store."""
    with short_folder() as folder:
        async with configured_server(folder, f"store: plain://{folder}/own.db\n") as server:
            assert isinstance(server.runtime.journal and server.runtime.journal.store, PlainStore)
            assert server.runtime.durable
            handle = await server.runtime.spawn(abs, args=(-3,))
            assert (await handle.result()).value == 3
        async with configured_server(folder, f"store: plain://{folder}/own.db\n") as server:
            assert (await server.runtime.result(handle.id)).value == 3
        assert (folder / "own.db").exists()
        assert not (folder / ".ramet" / "journal.db").exists()


async def test_a_runtime_accepts_a_store_object(tmp_path: pathlib.Path) -> None:
    """A session is recorded in that store, and continues in another runtime."""
    path = tmp_path / "own.db"
    model = ramet.ScriptedModel(["first"])
    async with ramet.AgentRuntime(tmp_path, store=PlainStore(path)) as runtime:
        async with ramet.Session(model, runtime=runtime, session_id="talk", cwd=tmp_path) as session:
            assert (await session.ask("One.")).value == "first"
    async with ramet.AgentRuntime(tmp_path, store=PlainStore(path)) as runtime:
        resumed_session = await ramet.Session.resume(
            "talk", ramet.ScriptedModel(["second"]), runtime=runtime, cwd=tmp_path
        )
        async with resumed_session:
            assert (await resumed_session.ask("Two.")).value == "second"
            assert [str(each.text) for each in resumed_session.messages] == ["One.", "first", "Two.", "second"]


class PartialStore:
    """A class with some attributes of a store, and one method that is not async."""

    name = "half"
    durable_across_processes = False
    kernel = "kernel"

    def __init__(self, url: str, kernel: str) -> None:
        if "hunter2" in url:
            raise OSError(f"no connection to {url}")

    def open(self) -> None: ...


class Sqlite(PlainStore):
    """A store with the name of one of ramet's own stores."""

    name = "sqlite"

    def __init__(self, url: str, kernel: str) -> None:
        super().__init__(pathlib.Path("unused"))


class FailingNameStore(PlainStore):
    """A store whose name raises OSError."""

    def __init__(self, url: str, kernel: str) -> None:
        super().__init__(pathlib.Path("unused"))

    @property
    def name(self) -> str:  # type: ignore[override]  # that is the point
        raise OSError("hunter2\nof two lines")


class LoudRules(house_rules.HouseRules):
    """A policy adapter whose name raises OSError."""

    name = FailingNameStore.name


HERE = __name__


@pytest.mark.parametrize(
    ("adapter", "field", "words"),
    [
        (StoreAdapter(f"{HERE}:PartialStore"), "store", "it has no open, close, append"),
        (StoreAdapter(f"{HERE}:Sqlite"), "store", "ramet's own stores"),
        (StoreAdapter(f"{HERE}:Nobody"), "store", "AttributeError"),
        (StoreAdapter(f"{HERE}:FailingNameStore"), "store", "its `name` raised OSError"),
        (StoreAdapter("broken", "broken://h/d"), "entry point 'broken' in 'ramet.stores'", "ModuleNotFoundError"),
        (StoreAdapter("absent", "absent://h/d"), "store", "an entry point of 'ramet.stores'"),
        (StoreAdapter(f"{HERE}:PartialStore", "half://me:hunter2@h/d"), "store", "OSError"),
    ],
    ids=["half", "own name", "nobody", "loud", "broken", "absent", "secret"],
)
def test_an_invalid_store_is_refused(entry_points: None, adapter: StoreAdapter, field: str, words: str) -> None:
    """InvalidValue says what is missing, and shows no password of the URL."""
    with pytest.raises(InvalidValue) as refusal:
        find_store(adapter, "kernel")

    assert refusal.value.field == field
    assert words in refusal.value.accepted
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("plain://me:hunter2@host:1/db?key=hunter3", "plain://me:***@host:1/db?***"),
        ("plain://me:hun/hunter2@host/db", "plain://me:***@host/db"),
        ("plain://me:hun?hunter2@host/db", "plain://me:***@host/db"),
        ("plain://me:h#hunter2@host/db", "plain://me:***@host/db"),
        ("plain://host/db;password=hunter2", "plain://host/db?***"),
        ("plain://host/hunter2@more", "plain://***@more"),
        ("plain://[hunter2@host", "plain://***@host"),
        ("plain://[host", "plain://[host"),
        ("tests.support.plain_store:by_url", "tests.support.plain_store:by_url"),
    ],
)
def test_the_url_of_a_store_is_shown_without_secrets(
    entry_points: None, tmp_path: pathlib.Path, url: str, expected: str
) -> None:
    """`str` masks the secrets of the URL, and `repr` shows none."""
    file = tmp_path / "ramet.yaml"
    file.write_text(f"store: {url}\n")
    config = load(file, {}, {})

    assert isinstance(config.store, StoreAdapter)
    assert str(config.store) == expected
    assert "hunter" not in repr(config)
    assert (config.store.url or config.store.name) == url


# --- policy adapters


async def test_a_server_asks_the_policy_adapter_of_its_settings(entry_points: None, tmp_path: pathlib.Path) -> None:
    """The settings give the name of an entry point; its adapter decides on each spawn."""
    with short_folder() as folder:
        async with configured_server(folder, f"policy_adapter: house\nbackend: {BACKENDS[-1]}\n") as server:
            policy = ramet.Policy(allowed_endpoints=("docs.example.org:443",), allow_sub_agents=True)
            handle = await server.runtime.spawn(agents.spawn, args=(agents.echo,), policy=policy)
            recorder = server.runtime.trees[handle.run.info.id].recorder
            await handle.result()
            decisions = of_kind(recorder.recent_events, PolicyDecided)

    assert handle.run.grant is not None
    assert handle.run.grant.allowed_endpoints == ()
    assert [(each.adapter, each.verdict, each.child) for each in decisions] == [
        ("house rules", "narrow", "spawn"),
        ("house rules", "allow", "echo"),
    ]


@pytest.mark.parametrize(
    ("name", "field", "words"),
    [
        ("tests.support.house_rules:no_adapter", "policy_adapter", "async def decide"),
        ("nothing", "entry point 'nothing' in 'ramet.policy_adapters'", "async def decide"),
        ("tests.support.house_rules:nobody", "policy_adapter", "AttributeError"),
        (f"{HERE}:LoudRules", "policy_adapter", "its name raised OSError"),
        ("absent", "policy_adapter", "an entry point of 'ramet.policy_adapters'"),
    ],
)
def test_an_invalid_policy_adapter_is_refused(entry_points: None, name: str, field: str, words: str) -> None:
    """InvalidValue has the entry point or the name, and the reason."""
    with pytest.raises(InvalidValue) as refusal:
        find_policy_adapter(name)

    assert (refusal.value.field, refusal.value.value) == (field, name)
    assert words in refusal.value.accepted


@pytest.mark.parametrize("check", policy_adapters.CHECKS, ids=lambda each: each.__name__)
async def test_the_policy_suite_passes_a_correct_adapter(check: policy_adapters.Check) -> None:
    await policy_adapters.run(check, house_rules.HouseRules)


@pytest.mark.parametrize(
    ("adapter", "check"),
    [
        (house_rules.Nameless, policy_adapters.the_adapter_is_well_formed),
        (house_rules.NoneForUnknownAdapter, policy_adapters.every_spawn_gets_a_decision),
        (house_rules.Raising, policy_adapters.every_spawn_gets_a_decision),
        (house_rules.Wordless, policy_adapters.every_spawn_gets_a_decision),
        (house_rules.Moody, policy_adapters.a_decoded_request_gets_the_same_decision),
        (house_rules.Busy, policy_adapters.concurrent_requests_are_decided),
        (house_rules.Stuck, policy_adapters.a_cancelled_call_ends),
    ],
    ids=lambda each: each.__name__,
)
async def test_the_policy_suite_finds_each_violation(adapter: Any, check: policy_adapters.Check) -> None:
    with pytest.raises(policy_adapters.Violation):
        await policy_adapters.run(check, adapter)


async def test_the_policy_suite_finds_an_adapter_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(house_rules.HouseRules):
        async def decide(self, request: Any) -> Any:
            await asyncio.Event().wait()

    monkeypatch.setattr(policy_adapters, "PATIENCE_S", 0.05)
    with pytest.raises(policy_adapters.Violation, match="not answered within"):
        await policy_adapters.run(policy_adapters.every_spawn_gets_a_decision, Deaf)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("tests.support.house_rules:HouseRules", 0, "5 checks, 0 failed"),
        ("tests.support.house_rules:NoneForUnknownAdapter", 1, "failed  every_spawn_gets_a_decision"),
        ("tests.support.house_rules:nobody", 2, "cannot be loaded"),
        ("--help", 2, "usage:"),
    ],
)
def test_a_command_runs_the_policy_suite(name: str, status: int, words: str) -> None:
    """One command prints the failed checks; its status says whether every check passed."""
    process_result = run_module("ramet.testing.conformance.policy_adapters", name)

    assert process_result.returncode == status, process_result.stderr
    assert words in process_result.stdout + process_result.stderr
    assert "Traceback" not in process_result.stderr
