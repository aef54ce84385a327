"""What holds for every test: a home of its own, no keys, no tracing, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Deadlines and "too slow" are timed tests in disguise: on a shared machine they fail by luck.
settings.register_profile("ramet", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("ramet"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("ramet"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "ramet"))

# Before any import of langchain: a developer's tracing must not send what tests say.
os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")
BOUND_S = 2.0  # how long what is already ending may take to end; passed in full only by a test that fails

_homes = itertools.count()


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's home, empty: HOME, and RAMET_HOME inside it (not made yet, as on a new machine)."""
    path = tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("RAMET_HOME", str(path / ".ramet"))
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    return path


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, home: Path) -> Iterator[None]:
    """A test that leaves a thread, process, socket, pipe or open file fails, and says which."""
    if _leaves(request):
        yield
        return
    files, threads, processes = _open_files(), set(threading.enumerate()), _children()
    yield
    left = _settled(lambda: _left(files, threads, processes))
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def no_task_left_behind(request: pytest.FixtureRequest, nothing_left_behind: None) -> None:
    """An async test that leaves a task on its loop fails, and says which."""
    # Asked for here, before the test's own fixtures, so that it looks when they are gone; and after
    # `nothing_left_behind`, which so looks when the loop is closed, too.
    if _is_async(request) and not _leaves(request):
        request.getfixturevalue("tasks_of_the_loop")


@pytest.fixture
async def tasks_of_the_loop() -> AsyncIterator[None]:
    """See `no_task_left_behind`."""
    yield
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if not tasks:
        return
    _, tasks = await asyncio.wait(tasks, timeout=BOUND_S)
    if tasks:
        pytest.fail("tasks left behind: " + "; ".join(repr(task) for task in tasks), pytrace=False)


def _leaves(request: pytest.FixtureRequest) -> bool:
    """Whether the test says that it leaves something behind; it must say why."""
    mark = request.node.get_closest_marker("leaves")
    assert mark is None or mark.args, "leaves needs its reason: @pytest.mark.leaves('the client keeps its pool')"
    return mark is not None


def _is_async(request: pytest.FixtureRequest) -> bool:
    function = getattr(request, "function", None)
    hypothesis = getattr(function, "hypothesis", None)
    return inspect.iscoroutinefunction(getattr(hypothesis, "inner_test", function))


def _settled(look: Callable[[], list[str]]) -> list[str]:
    """What `look` still finds once garbage is collected and what was ending has had time to end."""
    if not (found := look()):
        return found
    gc.collect()
    deadline = time.monotonic() + BOUND_S
    while (found := look()) and time.monotonic() < deadline:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join(timeout=0.02)
        threading.Event().wait(0.02)
    return found


def _left(files: dict[int, str], threads: set[threading.Thread], processes: set[int]) -> list[str]:
    now = _open_files()
    return [
        *(f"fd {fd} ({what})" for fd, what in now.items() if files.get(fd) != what),
        *(f"thread {t.name}" for t in threading.enumerate() if t not in threads and not t.daemon),
        *(f"process {pid}" for pid in _children() - processes),
    ]


def _open_files() -> dict[int, str]:
    """Descriptor to what it is; devices aside (libraries keep /dev/urandom and /dev/null open for good)."""
    found: dict[int, str] = {}
    with contextlib.suppress(FileNotFoundError):  # no /proc: nothing to see
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # gone since, as is the descriptor of this listing
                target = str(link.readlink())
                if not target.startswith(("/dev/", "/proc/")):
                    found[int(link.name)] = target
    return found


def _children() -> set[int]:
    """The processes we started and did not reap."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids.update(map(int, task.read_text().split()))
    return pids
