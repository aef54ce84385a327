"""Settings and fixtures of every test: a home of its own, no keys, no tracing, and no leaks."""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import faulthandler
import fcntl
import gc
import inspect
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Deadlines and "too slow" are timed tests in disguise: on a shared machine they fail by luck.
settings.register_profile("ramet", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("ramet"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("ramet"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "ramet"))

# Before any import of langchain: a developer's tracing must not send what tests say.
os.environ["LANGSMITH_TRACING"] = os.environ["LANGCHAIN_TRACING_V2"] = "false"

# Each client of a provider would read the machine's certificates of authorities, about 140, which takes 30 ms of
# processor time. Tests need none of them. The private key of the one that they get was not kept.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "support" / "authority.pem")

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY")
BOUND_S = 120.0  # how long what is already ending may take to end; passed in full only by a test that fails

ROOT = Path(__file__).parent

_homes = itertools.count()
#: Tests below these start many programs.
WARM_FOLDERS = ("chaos", "conformance", "security", "trips", "web")


def pytest_configure() -> None:
    """Handle Ctrl-C in tests and in the programs that they start, also where a shell runs them in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep collected tests out of garbage collection, since they stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests that need a cluster, or programs of other makers, which are not here.

    A KUBECONFIG alone may be of a cluster that is in use. With RAMET_TEST_SANDBOXES=one, each test runs in one of its
    sandboxes: see `tests.support.one_of_sandboxes`.
    """
    choice = os.environ.pop("RAMET_TEST_SANDBOXES", "all")  # for these tests only, not for suites that they start
    if choice != "all":
        from tests.support.one_of_sandboxes import left_out

        deselected = left_out((item.nodeid for item in items), choice)
        deselected |= {item.nodeid for item in items if item.get_closest_marker("larger")}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in deselected])
        items[:] = [item for item in items if item.nodeid not in deselected]
    if not (os.environ.get("KUBECONFIG") and os.environ.get("REGISTRY")):
        for item in items:
            if item.get_closest_marker("kubernetes"):
                why = "no cluster is given (KUBECONFIG and REGISTRY): `make test-kubernetes` brings one up"
                item.add_marker(pytest.mark.skip(reason=why))
    for item in items:
        for mark in item.iter_markers("agents"):
            from tests.support.agent_programs import is_installed  # not for suites that borrow this file

            missing = [name for name in mark.args if not is_installed(name)]
            if missing or not mark.args:
                why = f"not installed: {', '.join(missing)}; `make test-agents` installs it"
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_collection_finish() -> None:
    """Compile ramet for the programs that tests start, and let neither tests nor programs write bytecode.

    Python takes a source file of the same second and size for the one it compiled: a test that writes a module
    again would run the old one now and then.
    """
    _pass_hang_ups_to_started_programs()
    if not sys.dont_write_bytecode:
        compileall.compile_dir(ROOT.parent / "src", quiet=2)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def _pass_hang_ups_to_started_programs() -> None:
    """Survive a hang-up under `nohup`, in tests and their workers, but let it end the programs that tests start.

    An ignored signal stays ignored in a program that is executed; one with a handler gets its default action there.
    The process that only hands tests out to workers collects nothing, and so leaves the signal ignored for them.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


# --- several at a time ----------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give whole shares to the workers of `pytest -n 2`, the longest first."""
    from tests.support.worker_scheduler import WorkerScheduler

    return WorkerScheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: object) -> None:
    """Say at once how a worker ended, and in which test: a run that is cut off later prints no summary."""
    how = getattr(sched, "crashes", {}).get(crashitem, "unknown")
    report.longrepr = f"{report.longrepr}; it ended by {how}"
    sys.stderr.write(f"\n{report.longrepr}\n")


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Begin a test marked `alone` when the other processes of `pytest -n` have ended theirs; they wait for it."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    mark = item.get_closest_marker("alone")
    assert mark is None or mark.args, "alone needs its reason: @pytest.mark.alone('it counts what is on the machine')"
    # Folders can be locked, and these are there anyway. A test that is to be alone holds `entry_lock` while it
    # waits, which keeps others from beginning before it.
    with _open_folder(ROOT) as run_lock, _open_folder(ROOT.parent) as entry_lock:
        faulthandler.dump_traceback_later(600)  # A wait here belongs to no test, and so has no other limit.
        fcntl.flock(entry_lock, fcntl.LOCK_EX)
        fcntl.flock(run_lock, fcntl.LOCK_EX if mark else fcntl.LOCK_SH)
        fcntl.flock(entry_lock, fcntl.LOCK_UN)
        faulthandler.cancel_dump_traceback_later()
        try:
            return (yield)
        finally:
            fcntl.flock(run_lock, fcntl.LOCK_UN)  # by word: a child that was forked has it open as well


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Escape text in a report that UTF-8 cannot hold, since reports travel as UTF-8."""
    return _writable((yield))


def _writable(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, dict):
        return {_writable(key): _writable(value) for key, value in data.items()}
    return type(data)(map(_writable, data)) if type(data) in (list, tuple) else data


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture(scope="module", autouse=True)
def warm_starts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start the Python programs of slow tests warm: see `tests.support.warm`."""
    folder = request.path.relative_to(ROOT).parts[0]
    if folder not in WARM_FOLDERS or request.node.get_closest_marker("cold"):
        yield
        return
    from tests.support.warm import warm_programs

    with warm_programs(request.config):
        yield


# --- a home, and nothing left behind --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Empty home of the user: HOME, and RAMET_HOME inside it (not made yet, as on a new machine)."""
    path = tmp_path_factory.getbasetemp() / f"home-{next(_homes)}"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.setenv("RAMET_HOME", str(path / ".ramet"))
    for key in (*KEYS, "RAMET_SERVER"):
        monkeypatch.delenv(key, raising=False)
    return path


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, home: Path) -> Iterator[None]:
    """Fail a test that leaves a thread, process, socket, pipe or open file, and name each."""
    if _may_leave(request):
        yield
        return
    files, threads, processes = _open_files(), set(threading.enumerate()), _children()
    yield
    left = _wait_until_clean(lambda: _leaks(files, threads, processes))
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def no_task_left_behind(request: pytest.FixtureRequest, nothing_left_behind: None) -> None:
    """Fail an async test that leaves a task on its loop, and name the task."""
    # Asked for here, before the test's own fixtures, so that it looks when they are gone; and after
    # `nothing_left_behind`, which so looks when the loop is closed, too.
    if _is_async(request) and not _may_leave(request):
        request.getfixturevalue("tasks_of_the_loop")


@pytest.fixture
async def tasks_of_the_loop() -> AsyncIterator[None]:
    """Check the tasks of the loop for `no_task_left_behind`."""
    yield
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    if not tasks:
        return
    _, tasks = await asyncio.wait(tasks, timeout=BOUND_S)
    if tasks:
        pytest.fail("tasks left behind: " + "; ".join(repr(task) for task in tasks), pytrace=False)


def _may_leave(request: pytest.FixtureRequest) -> bool:
    """Return whether the test is marked as leaving something behind; the mark must have a reason."""
    mark = request.node.get_closest_marker("leaves")
    assert mark is None or mark.args, "leaves needs its reason: @pytest.mark.leaves('the client keeps its pool')"
    return mark is not None


def _is_async(request: pytest.FixtureRequest) -> bool:
    function = getattr(request, "function", None)
    hypothesis = getattr(function, "hypothesis", None)
    return inspect.iscoroutinefunction(getattr(hypothesis, "inner_test", function))


def _wait_until_clean(look: Callable[[], list[str]]) -> list[str]:
    """Return what `look` still finds after a garbage collection and after time for ending things to end."""
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


def _leaks(files: dict[int, str], threads: set[threading.Thread], processes: set[int]) -> list[str]:
    now = _open_files()
    return [
        *(f"fd {fd} ({target})" for fd, target in now.items() if files.get(fd) != target),
        *(f"thread {t.name}" for t in threading.enumerate() if t not in threads and not t.daemon),
        *(f"process {pid}" for pid in _children() - processes),
    ]


def _open_files() -> dict[int, str]:
    """Map each open descriptor to its target, except devices.

    Libraries keep /dev/urandom and /dev/null open permanently.
    """
    found: dict[int, str] = {}
    with contextlib.suppress(FileNotFoundError):  # no /proc: nothing to see
        for link in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # gone since, as is the descriptor of this listing
                target = str(link.readlink())
                if not target.startswith(("/dev/", "/proc/")):
                    found[int(link.name)] = target
    return found


def _children() -> set[int]:
    """Return the processes that this one started and did not reap."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids.update(map(int, task.read_text().split()))
    return pids
