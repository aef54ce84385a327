"""Results of an agent in a sandbox: values, errors, streams, files. Every backend gives the same results."""

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
from tests.trips.kits.isolated import BackendName, backend, runtime

__all__ = ["backend", "runtime"]


async def test_ac_s0_1_status_shows_a_session_while_it_runs(runtime: ramet.AgentRuntime) -> None:
    """AC-S0-1: the status is `running`, and has a session's id only during its run."""
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
    """AC-S0-2: a function that writes no file yields exactly its return value, under the default policy."""
    result = await runtime.run_agent(agent=agents.echo, args=(1, "two"), kwargs={"three": [3.0, None, True]})

    assert (result.status, result.exit_code, result.error) == ("completed", 0, None)
    assert result.output == {"args": [1, "two"], "kwargs": {"three": [3.0, None, True]}}
    assert result.artifacts == ()
    assert result.session_id


async def test_closures_and_lambdas_run_in_a_sandbox(runtime: ramet.AgentRuntime) -> None:
    """146: closures and lambdas travel by value, with the variables that they close over."""
    factor = 6

    def times(number: int) -> int:
        return factor * number

    assert (await runtime.run_agent(agent=times, args=(7,))).output == 42
    assert (await runtime.run_agent(agent=lambda: factor)).output == 6


async def test_a_sandbox_awaits_a_coroutine_function(runtime: ramet.AgentRuntime) -> None:
    """An async function is an agent like any other."""
    assert (await runtime.run_agent(agent=agents.asynchronous, args=("word",))).output == "WORD"


def text_of(path: str) -> str:
    """Return the text of a file of the host."""
    return pathlib.Path(path).read_text()


VALUES: list[Any] = [
    None, True, 0, -1, 2**53, 2**200, 0.1, math.inf, "", "text", "\u0000\ud7ff\U0010ffff", b"", b"\x00\xff", [], {},
    [[[]]], {"a": {"b": [1, {"c": None}]}}, {"@type": "not ours"}, {"@bytes": "x"}, {"": 0},
]  # fmt: skip


async def test_values_pass_a_sandbox_unchanged(runtime: ramet.AgentRuntime) -> None:
    """Arguments and results keep extremes, bytes, empty values, and data that looks like ramet's own markers."""
    result = await runtime.run_agent(agent=agents.echo, args=(VALUES,))

    [args] = result.output["args"]
    assert args == VALUES
    assert list(map(type, args)) == list(map(type, VALUES))


async def test_annotated_types_are_rebuilt_and_others_arrive_as_dicts(runtime: ramet.AgentRuntime) -> None:
    """FINEPRINT: the return annotation decides which dataclasses and tuples are rebuilt.

    Others are data with a type name.
    """
    expected = agents.Point(1, 2, ["made inside"])

    assert (await runtime.run_agent(agent=agents.point, args=(1, 2))).output == expected
    assert (await runtime.run_agent(agent=agents.points)).output == {"line": [agents.Point(0, 0), agents.Point(1, 1)]}
    assert (await runtime.run_agent(agent=agents.pair)).output == (1, "one")
    assert (await runtime.run_agent(agent=agents.unannotated_pair)).output == [1, [2]]
    unnamed = (await runtime.run_agent(agent=agents.unnamed_point, args=(1, 2))).output
    assert unnamed["@type"].endswith("Point")
    assert (unnamed["x"], unnamed["y"]) == (1, 2)


async def test_returns_names_the_type_of_a_result(runtime: ramet.AgentRuntime) -> None:
    """FINEPRINT: the argument `returns=` replaces a missing annotation."""
    result = await runtime.run_agent(agent=agents.unnamed_point, args=(1, 2), returns=agents.Point)

    assert result.output == agents.Point(1, 2, ["made inside"])


async def test_times_arrays_and_models_come_back(runtime: ramet.AgentRuntime) -> None:
    """Times, numpy arrays, and pydantic models that `returns=` names keep their types."""
    assert (await runtime.run_agent(agent=agents.moment)).output == datetime.datetime(
        2026, 11, 20, 17, 30, tzinfo=datetime.UTC
    )
    array = (await runtime.run_agent(agent=agents.array, args=(3, 4))).output
    assert isinstance(array, numpy.ndarray)
    assert array.dtype == numpy.float32
    assert (array == numpy.arange(12, dtype=numpy.float32).reshape(3, 4)).all()
    assert (await runtime.run_agent(agent=agents.answer, returns=Answer)).output == Answer(text="yes", score=0.5)


async def test_176_values_of_five_megabytes_pass_a_sandbox(runtime: ramet.AgentRuntime) -> None:
    """176: arguments and results can be far larger than 64 KB."""
    result = await runtime.run_agent(agent=agents.echo, args=("x" * 5_000_000,))

    assert result.output["args"] == ["x" * 5_000_000]


async def test_166_callbacks_receive_output_while_an_agent_runs(runtime: ramet.AgentRuntime) -> None:
    """166: the callbacks receive both streams during the run, and the result has both, too."""
    output: dict[str, list[str]] = {"out": [], "err": []}

    result = await runtime.run_agent(
        agent=agents.speak,
        args=(["first", "second", "complaint"],),
        on_stdout=output["out"].append,
        on_stderr=output["err"].append,
    )

    assert ("".join(output["out"]), "".join(output["err"])) == ("first\nsecond\n", "complaint\n")
    assert (result.stdout, result.stderr) == ("first\nsecond\n", "complaint\n")


async def test_166_a_failing_callback_does_not_harm_the_agent(runtime: ramet.AgentRuntime) -> None:
    """166: an error of a callback changes neither the run nor its result."""

    def broken(text: str) -> None:
        raise ValueError("the listener's own fault")

    result = await runtime.run_agent(agent=agents.speak, args=(["a", "b"],), on_stdout=broken)

    assert (result.status, result.stdout) == ("completed", "a\n")


async def test_168_files_left_in_the_workspace_are_artifacts(runtime: ramet.AgentRuntime) -> None:
    """168: an artifact has its name below the workspace, its size, and a copy that the host can read."""
    result = await runtime.run_agent(agent=agents.leave, args=({"report.md": "# Report", "data/x.csv": "1,2\n"},))

    artifacts = {each.name: (each.size, text_of(str(each.path))) for each in result.artifacts}
    assert artifacts == {"report.md": (8, "# Report"), "data/x.csv": (4, "1,2\n")}


async def test_118_workspaces_lie_below_the_working_directory_and_are_private(
    runtime: ramet.AgentRuntime, tmp_path: pathlib.Path
) -> None:
    """118: a run has a folder of its own below the working directory, closed to other users."""
    result = await runtime.run_agent(agent=agents.leave, args=({"report.md": "# Report"},))

    path = pathlib.Path(str(result.artifacts[0].path))
    assert path.is_relative_to(tmp_path / "work")
    private_folders = [folder for folder in (path, *path.parents) if folder.is_relative_to(tmp_path / "work")]
    assert any(not folder.stat().st_mode & 0o077 for folder in private_folders)


async def test_an_error_in_a_sandbox_is_a_result_and_not_an_exception(runtime: ramet.AgentRuntime) -> None:
    """`run_agent` never raises an error of the guest."""
    result = await runtime.run_agent(agent=agents.fail, args=("the reason",))

    assert (result.status, result.exit_code, result.output) == ("failed", 1, None)
    assert result.error is not None
    assert result.error.type.endswith("ValueError")
    assert "the reason" in result.error.message
    assert "the reason" in result.stderr


async def test_the_error_names_a_module_missing_in_the_sandbox(runtime: ramet.AgentRuntime) -> None:
    """Bad input: a function imports a module that the sandbox does not have."""
    result = await runtime.run_agent(agent=agents.needs_missing)

    assert result.status == "failed"
    assert "no_such_module_anywhere" in str(result.error)


async def test_code_that_cannot_be_packed_is_refused_before_a_sandbox_starts(runtime: ramet.AgentRuntime) -> None:
    """Bad input: a closed-over socket, or a lock as argument, raises an error with its cause and a remedy."""
    with socket.socket() as connection:
        with pytest.raises(NotShippable) as refusal:
            await runtime.run_agent(agent=lambda: connection.fileno())
        assert "socket" in str(refusal.value)
        assert refusal.value.remedy
    with pytest.raises(NotShippable):
        await runtime.run_agent(agent=agents.echo, args=(threading.Lock(),))
    with pytest.raises(RametError):
        await runtime.run_agent(agent="not a function")  # type: ignore[arg-type]

    assert len(runtime.get_status()["sessions"]) == 0


async def test_a_function_that_holds_a_secret_of_its_policy_is_refused(runtime: ramet.AgentRuntime) -> None:
    """FINEPRINT: a packed function with a known secret is not sent. The error names the variable, not the value."""
    key = "sk-very-secret-0123456789"

    def leaky() -> int:
        return len(key)

    with pytest.raises(NotShippable) as refusal:
        await runtime.run_agent(agent=leaky, policy=ramet.Policy(secrets={"token": key}))

    assert "key" in str(refusal.value)
    assert key not in str(refusal.value)


async def test_167_169_an_owner_can_run_commands_and_read_metrics_of_a_sandbox(runtime: ramet.AgentRuntime) -> None:
    """167, 169: a command and the metrics work while the agent runs, and raise a typed error after its end."""
    ready = asyncio.Event()
    handle = await runtime.start_agent(
        agent=agents.work_and_nap, policy=ramet.Policy(), args=(0.2, 60), on_stdout=lambda text: ready.set()
    )
    await ready.wait()

    ran = await handle.run_command(["sh", "-c", "echo beside; echo more >&2; exit 3"])
    metrics = await handle.metrics()
    await handle.cancel("seen enough")

    assert (ran.code, bytes(ran.stdout), bytes(ran.stderr)) == (3, b"beside\n", b"more\n")
    assert metrics.cpu_seconds >= 0.1  # It used twice that, as it counts itself.
    assert metrics.memory_mb > 0
    assert metrics.pids >= 1
    with pytest.raises(RametError):
        await handle.metrics()
    with pytest.raises(Unknown):
        runtime.get("no-such-run")


def test_sync_methods_work_outside_a_loop_and_refuse_inside(backend: BackendName, tmp_path: pathlib.Path) -> None:
    """Row 4: sync methods give the same results without asyncio.

    Inside a running loop, the error names the async method.
    """
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
    """The first seed's code runs as a user's script, with only the package's name replaced."""
    (tmp_path / "prod.py").write_text(SEED)

    process_result = subprocess.run(
        [sys.executable, "prod.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert (process_result.returncode, process_result.stderr) == (0, "")
    first, last = process_result.stdout.splitlines()
    assert "running" in first
    assert last == "Child finished with: 0"
