"""What comes back from an agent in a sandbox: values, errors, streams, files. On every backend alike."""

from __future__ import annotations

import asyncio
import datetime
import math
import pathlib
import socket
import subprocess
import sys
import threading
from typing import Any

import numpy
import pytest

import ramet
from ramet.core.errors import NotShippable, RametError, Unknown
from tests.trips.agents import isolated as agents
from tests.trips.agents.models import Answer
from tests.trips.kits.isolated import Name, backend, runtime

__all__ = ["backend", "runtime"]


async def test_ac_s0_1_status_shows_a_session_while_it_runs(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-1: running with no session; during a run with its id; afterwards with none again."""
    assert (runtime.get_status()["state"], len(runtime.get_status()["sessions"])) == ("running", 0)

    ready = asyncio.Event()
    handle = await runtime.start_agent(
        agent=agents.nap, policy=ramet.Policy(), args=(60,), on_stdout=lambda text: ready.set()
    )
    await ready.wait()
    during = runtime.get_status()["sessions"]
    await handle.cancel("seen enough")
    await handle.result()

    assert len(during) == 1
    assert handle.id in str(during)
    assert len(runtime.get_status()["sessions"]) == 0
    await runtime.stop()
    assert runtime.get_status()["state"] == "stopped"


async def test_ac_s0_2_the_value_is_the_result(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-2: a function that returns and writes no file yields exactly that, in the default policy."""
    result = await runtime.run_agent(agent=agents.echo, args=(1, "two"), kwargs={"three": [3.0, None, True]})

    assert (result.status, result.exit_code, result.error) == ("completed", 0, None)
    assert result.output == {"args": [1, "two"], "kwargs": {"three": [3.0, None, True]}}
    assert result.artifacts == ()
    assert result.session_id


async def test_a_function_of_this_very_module_and_one_made_here_travel(runtime: ramet.AgentRuntime) -> None:
    """146: closures and lambdas go by value, with what they close over."""
    factor = 6

    def times(number: int) -> int:
        return factor * number

    assert (await runtime.run_agent(agent=times, args=(7,))).output == 42
    assert (await runtime.run_agent(agent=lambda: factor)).output == 6


async def test_a_coroutine_function_is_awaited_inside(runtime: ramet.AgentRuntime) -> None:
    """An async function is an agent like any other."""
    assert (await runtime.run_agent(agent=agents.asynchronous, args=("word",))).output == "WORD"


def text_of(path: str) -> str:
    """What a file of the host holds."""
    return pathlib.Path(path).read_text()


VALUES: list[Any] = [
    None, True, 0, -1, 2**53, 2**200, 0.1, math.inf, "", "text", "\u0000\ud7ff\U0010ffff", b"", b"\x00\xff", [], {},
    [[[]]], {"a": {"b": [1, {"c": None}]}}, {"@type": "not ours"}, {"@bytes": "x"}, {"": 0},
]  # fmt: skip


async def test_values_come_back_as_they_were(runtime: ramet.AgentRuntime) -> None:
    """Data makes the way in and out unchanged: extremes, markers that look like ours, bytes, empty things."""
    result = await runtime.run_agent(agent=agents.echo, args=(VALUES,))

    [found] = result.output["args"]
    assert found == VALUES
    assert list(map(type, found)) == list(map(type, VALUES))


async def test_annotated_types_are_rebuilt_and_others_arrive_as_dicts(runtime: ramet.AgentRuntime) -> None:
    """FINEPRINT: a dataclass or tuple that the return annotation names is one again; else data with its type's name."""
    expected = agents.Point(1, 2, ["made inside"])

    assert (await runtime.run_agent(agent=agents.point, args=(1, 2))).output == expected
    assert (await runtime.run_agent(agent=agents.points)).output == {"line": [agents.Point(0, 0), agents.Point(1, 1)]}
    assert (await runtime.run_agent(agent=agents.pair)).output == (1, "one")
    assert (await runtime.run_agent(agent=agents.unannotated_pair)).output == [1, [2]]
    unnamed = (await runtime.run_agent(agent=agents.unnamed_point, args=(1, 2))).output
    assert unnamed["@type"].endswith("Point")
    assert (unnamed["x"], unnamed["y"]) == (1, 2)


async def test_types_may_be_named_by_the_caller(runtime: ramet.AgentRuntime) -> None:
    """FINEPRINT: `returns=` says what the annotation does not."""
    result = await runtime.run_agent(agent=agents.unnamed_point, args=(1, 2), returns=agents.Point)

    assert result.output == agents.Point(1, 2, ["made inside"])


async def test_times_arrays_and_models_come_back(runtime: ramet.AgentRuntime) -> None:
    """datetimes, numpy arrays as arrays, pydantic models by name or as data."""
    assert (await runtime.run_agent(agent=agents.moment)).output == datetime.datetime(
        2026, 11, 20, 17, 30, tzinfo=datetime.UTC
    )
    array = (await runtime.run_agent(agent=agents.array, args=(3, 4))).output
    assert isinstance(array, numpy.ndarray)
    assert array.dtype == numpy.float32
    assert (array == numpy.arange(12, dtype=numpy.float32).reshape(3, 4)).all()
    assert (await runtime.run_agent(agent=agents.answer, returns=Answer)).output == Answer(text="yes", score=0.5)


async def test_176_a_megabyte_and_more_travels(runtime: ramet.AgentRuntime) -> None:
    """176: far above 64 KB, in both directions."""
    result = await runtime.run_agent(agent=agents.echo, args=("x" * 5_000_000,))

    assert result.output["args"] == ["x" * 5_000_000]


async def test_166_output_is_heard_live_and_kept(runtime: ramet.AgentRuntime) -> None:
    """166: callbacks hear both streams while the agent runs; the result has them too."""
    heard: dict[str, list[str]] = {"out": [], "err": []}

    result = await runtime.run_agent(
        agent=agents.speak,
        args=(["first", "second", "complaint"],),
        on_stdout=heard["out"].append,
        on_stderr=heard["err"].append,
    )

    assert ("".join(heard["out"]), "".join(heard["err"])) == ("first\nsecond\n", "complaint\n")
    assert (result.stdout, result.stderr) == ("first\nsecond\n", "complaint\n")


async def test_166_a_callback_that_fails_costs_the_agent_nothing(runtime: ramet.AgentRuntime) -> None:
    """166: who listens cannot break what is listened to."""

    def broken(text: str) -> None:
        raise ValueError("the listener's own fault")

    result = await runtime.run_agent(agent=agents.speak, args=(["a", "b"],), on_stdout=broken)

    assert (result.status, result.stdout) == ("completed", "a\n")


async def test_168_files_that_are_left_are_artifacts(runtime: ramet.AgentRuntime) -> None:
    """168: name below the workspace, size, and a copy that the host can read."""
    result = await runtime.run_agent(agent=agents.leave, args=({"report.md": "# Report", "data/x.csv": "1,2\n"},))

    found = {each.name: (each.size, text_of(str(each.path))) for each in result.artifacts}
    assert found == {"report.md": (8, "# Report"), "data/x.csv": (4, "1,2\n")}


async def test_118_workspaces_lie_below_the_working_directory_and_are_private(
    runtime: ramet.AgentRuntime, tmp_path: pathlib.Path
) -> None:
    """118: each logical run has a folder of its own there; another user cannot look into it."""
    result = await runtime.run_agent(agent=agents.leave, args=({"report.md": "# Report"},))

    path = pathlib.Path(str(result.artifacts[0].path))
    assert path.is_relative_to(tmp_path / "work")
    closed = [folder for folder in (path, *path.parents) if folder.is_relative_to(tmp_path / "work")]
    assert any(not folder.stat().st_mode & 0o077 for folder in closed)


async def test_an_error_inside_is_a_result_not_an_exception(runtime: ramet.AgentRuntime) -> None:
    """`run_agent` never raises for what the guest did."""
    result = await runtime.run_agent(agent=agents.fail, args=("the reason",))

    assert (result.status, result.exit_code, result.output) == ("failed", 1, None)
    assert result.error is not None
    assert result.error.type.endswith("ValueError")
    assert "the reason" in result.error.message
    assert "the reason" in result.stderr


async def test_a_module_that_is_missing_inside_is_said_so(runtime: ramet.AgentRuntime) -> None:
    """Bad input: the error names the module."""
    result = await runtime.run_agent(agent=agents.needs_missing)

    assert result.status == "failed"
    assert "no_such_module_anywhere" in str(result.error)


async def test_what_cannot_travel_in_is_refused_before_anything_starts(runtime: ramet.AgentRuntime) -> None:
    """Bad input: a lambda that closes over a socket, a lock as an argument: an error that says what and what to do."""
    with socket.socket() as held:
        with pytest.raises(NotShippable) as refusal:
            await runtime.run_agent(agent=lambda: held.fileno())
        assert "socket" in str(refusal.value)
        assert refusal.value.remedy
    with pytest.raises(NotShippable):
        await runtime.run_agent(agent=agents.echo, args=(threading.Lock(),))
    with pytest.raises(RametError):
        await runtime.run_agent(agent="not a function")  # type: ignore[arg-type]

    assert len(runtime.get_status()["sessions"]) == 0


async def test_a_function_that_holds_a_secret_of_its_policy_is_refused(runtime: ramet.AgentRuntime) -> None:
    """FINEPRINT: a packed function with a known secret is not sent; the error names the variable, not the value."""
    key = "sk-very-secret-0123456789"

    def leaky() -> int:
        return len(key)

    with pytest.raises(NotShippable) as refusal:
        await runtime.run_agent(agent=leaky, policy=ramet.Policy(secrets={"token": key}))

    assert "key" in str(refusal.value)
    assert key not in str(refusal.value)


async def test_167_169_a_running_agents_sandbox_can_be_looked_into_by_its_owner(runtime: ramet.AgentRuntime) -> None:
    """167, 169: a command beside it, its metrics; after its end both are a typed error."""
    ready = asyncio.Event()
    handle = await runtime.start_agent(
        agent=agents.work_and_nap, policy=ramet.Policy(), args=(0.2, 60), on_stdout=lambda text: ready.set()
    )
    await ready.wait()

    ran = await handle.run_command(["sh", "-c", "echo beside; echo more >&2; exit 3"])
    used = await handle.metrics()
    await handle.cancel("seen enough")

    assert (ran.code, bytes(ran.stdout), bytes(ran.stderr)) == (3, b"beside\n", b"more\n")
    assert used.cpu_seconds >= 0.1  # It used twice that, as it counts itself.
    assert used.memory_mb > 0
    assert used.pids >= 1
    with pytest.raises(RametError):
        await handle.metrics()
    with pytest.raises(Unknown):
        runtime.get("no-such-run")


def test_sync_faces_work_outside_a_loop_and_refuse_inside(backend: Name, tmp_path: pathlib.Path) -> None:
    """Row 4: the same results without asyncio; inside a running loop an error that says what to call instead."""
    with_sync = ramet.AgentRuntime(working_dir=tmp_path / "work", backend=backend)
    with_sync.start_sync()
    try:
        assert with_sync.run_agent_sync(agent=agents.echo, args=(1,)).output["args"] == [1]
        assert with_sync.run_agent_sync(agent=agents.fail, args=("x",)).status == "failed"

        async def inside() -> None:
            with_sync.run_agent_sync(agent=agents.echo)

        with pytest.raises(RametError, match="run_agent"):
            asyncio.run(inside())
    finally:
        with_sync.stop_sync()


SEED = """
import asyncio
from ramet import AgentRuntime, Policy
from ramet.sub_agent_client import spawn_sub_agent


def child_agent_logic():
    print("the child works")
    return "logic done"


def parent_agent():
    print("Spawning child...")
    result = spawn_sub_agent(
        agent=child_agent_logic,
        policy=Policy(memory_mb=128)
    )
    return f"Child finished with: {result.exit_code}"


async def main():
    runtime = AgentRuntime(working_dir="./prod_workspace")

    # Start background services (Spawn Daemon, etc.)
    await runtime.start()

    # Status check
    print(runtime.get_status())

    policy = Policy(allow_sub_agents=True)

    # Run an agent
    result = await runtime.run_agent(
        agent=parent_agent,
        policy=policy
    )
    print(result.output)
    await runtime.stop()


asyncio.run(main())
"""


def test_seed_000_runs_as_it_is_shown(tmp_path: pathlib.Path) -> None:
    """The first seed's code, with the package's name replaced, as a script of a user."""
    (tmp_path / "prod.py").write_text(SEED)

    done = subprocess.run(
        [sys.executable, "prod.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert "running" in first
    assert last == "Child finished with: 0"
