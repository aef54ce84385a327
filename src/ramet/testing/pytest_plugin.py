"""Fixtures for tests of agents, by pytest: `pytest_plugins = ["ramet.testing.pytest_plugin"]` in `conftest.py`.

The plugin is not loaded by itself: every pytest of every project with ramet would then import it, and have its
fixtures.
Fixtures that are asynchronous belong to pytest-asyncio, or to anyio where that is not installed.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

_async_fixture: Any = pytest.fixture  # Any: of pytest-asyncio, where that is installed; anyio runs those of pytest
with suppress(ImportError):
    from pytest_asyncio import fixture as _async_fixture

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

    from ramet.host.runtime import AgentRuntime
    from ramet.testing import FakeClock, ReplayModel, ScriptedModel

RECORD_OPTION = "--ramet-record"
#: Folder of recordings, beside the module of the tests.
RECORDINGS = "recordings"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with which `recorded_model` asks real models."""
    parser.getgroup("ramet").addoption(
        RECORD_OPTION, action="store_true", help="recorded_model asks the real model, and writes its recording anew"
    )


@pytest.fixture
def fake_clock() -> FakeClock:
    """Clock that only `await fake_clock.advance(seconds)` moves: for `AgentRuntime(clock=…)` and `ScriptedModel`."""
    from ramet.testing import FakeClock

    return FakeClock()


@pytest.fixture
def scripted_model() -> Iterator[Callable[..., ScriptedModel]]:
    """Function that returns a `ScriptedModel`; a test fails whose script, a list, was not played to its end.

    With `play_all=False` the rest of a script may be left.
    """
    from ramet.testing import ScriptedModel

    models: list[ScriptedModel] = []

    def create(script: Any, *, play_all: bool = True, **fields: Any) -> ScriptedModel:
        model = ScriptedModel(script, **fields)
        if play_all:
            models.append(model)
        return model

    yield create
    for model in models:
        if model.steps_left:
            pytest.fail(f"the script of {model.model_name} has {model.steps_left} steps left", pytrace=False)


@pytest.fixture
def recorded_model(request: pytest.FixtureRequest) -> Iterator[Callable[..., BaseChatModel]]:
    """Function that returns a model by its name, `recorded_model("anthropic:…")`, which answers from a recording.

    The recording is `recordings/<module>/<test>.jsonl` beside the test, with `-<name>` for a second model of the test.
    With `--ramet-record` the real model is asked, and the recording written anew. A test fails that sends another
    request, or fewer, than the recording has. In the recording `/tmp_path` stands for the folder `tmp_path` of a test.
    """
    from ramet.testing import record_to, replay_from

    replays: list[ReplayModel] = []
    has_folder = "tmp_path" in request.fixturenames
    replace = {str(request.getfixturevalue("tmp_path")): "/tmp_path"} if has_folder else {}

    def create(model: str | BaseChatModel, name: str = "", *, secrets: tuple[str, ...] = ()) -> BaseChatModel:
        path = _recording_of(request, name)
        if request.config.getoption(RECORD_OPTION):
            return record_to(path, model, secrets=secrets, replace=replace)
        if not path.exists():
            pytest.fail(f"there is no recording {path}: run this test once with {RECORD_OPTION}", pytrace=False)
        replay = replay_from(path, secrets=secrets, replace=replace)
        replays.append(replay)
        return replay

    yield create
    for replay in replays:
        try:
            replay.assert_all_played()
        except AssertionError as difference:
            pytest.fail(str(difference), pytrace=False)


@_async_fixture  # type: ignore[untyped-decorator]  # one of two functions
async def runtime(tmp_path: pathlib.Path) -> AsyncIterator[AgentRuntime]:
    """Started `AgentRuntime` with its journal in `tmp_path`; stopped afterwards, with all its agents.

    A test fails that leaves a run which could not be ended, a thread that still works on a tool, or a process.
    """
    from ramet.host.runtime import AgentRuntime
    from ramet.testing.leak_check import descendants, new_descendants

    before = descendants()
    async with AgentRuntime(tmp_path) as started:
        yield started
        receipts = [await tree.tree.supervisor.stop_tree("the test is over") for tree in started.trees.values()]
    left = [f"run {name}" for receipt in receipts for name in receipt.left]
    left += await new_descendants(before)
    if left:
        pytest.fail("left behind by the runtime: " + "; ".join(left), pytrace=False)


def _recording_of(request: pytest.FixtureRequest, name: str) -> pathlib.Path:
    test = re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")[:100]
    end = f"-{name}" if name else ""
    return request.path.parent / RECORDINGS / request.path.stem / f"{test}{end}.jsonl"
