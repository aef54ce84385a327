"""Policies as users write them: strict, as data, and enforced or refused on every backend."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest

import ramet
from ramet.core.errors import InvalidValue, IsolationUnavailable, RametError, Unknown
from ramet.core.policy import policy as policies
from tests.security.attacks import files, processes
from tests.support.moon_backend import MoonBackend
from tests.trips.agents import isolated as agents
from tests.trips.kits.isolated import backend, runtime

__all__ = ["backend", "runtime"]

WRONG: dict[str, list[Any]] = {
    "cpu_cores": [0, -1, float("nan"), float("inf"), "1", True],
    "memory_mb": [0, -1, 1.5, "128", True, 2**60],
    "pids": [0, -1, 2.5, "8"],
    "timeout_seconds": [0, -1, float("nan"), "10"],
    "network": ["on", "bridge", True],
    "allowed_endpoints": ["example.org:443", ("example.org",), (":443",), ("a:0",), ("a:65536",), ("a b:1",), (1,)],
    "ports": [8000, "web", ["web"], {"web": 0}, {"web": 65536}, {"web": "80"}, {"web": True}, {"": 80}, {"../x": 80}],
    "readonly_mounts": ["/usr", ("usr",), ("../x",), ("~/x",), ("/a\0b",)],
    "writable_mounts": ["/srv", ("srv",), ("../x",), ("~/x",), ("/a\0b",), ("/etc",), ("/a/.git",)],
    "tmpfs_size_mb": [-1, "8", 1.5],
    "workspace_size_mb": [-1, "8"],
    "max_output_bytes": [-1, "8"],
    "allowed_env_vars": ["PATH", ("A=B",), ("",), ("LD_PRELOAD",)],
    "env_vars": [{"A=B": "x"}, {"": "x"}, {"A": 1}, {"A": "x\0y"}, {"LD_PRELOAD": "x"}, ["A"]],
    "secrets": [{"../x": "y"}, {"": "y"}, {"a/b": "y"}, {"a": 1}, {".": "y"}],
    "allow_sub_agents": ["yes", 1, 0],
    "max_sub_agent_depth": [-1, "3", 1.5],
    "max_sub_agents": [-1, "3"],
    "isolation": ["L9", 2, "", "none"],
    "retry_count": [-1, "1", 0.5],
    "retry_delay_seconds": [-1, "1", float("nan")],
}


@pytest.mark.parametrize("field", WRONG)
def test_an_invalid_value_names_its_field(field: str) -> None:
    """61: from Python and from JSON the error has the field, and what would be accepted."""
    for value in WRONG[field]:
        with pytest.raises(InvalidValue) as refusal:
            ramet.Policy(**{field: value})
        assert refusal.value.field.startswith(f"policy.{field}"), value
        assert refusal.value.accepted
        with pytest.raises(InvalidValue) as refusal:
            policies.from_json({field: value})
        assert refusal.value.field.startswith(f"policy.{field}"), value


def test_an_unknown_field_is_named() -> None:
    """An unknown field such as "privileged" raises InvalidValue or TypeError."""
    with pytest.raises(InvalidValue) as refusal:
        policies.from_json('{"memory_mb": 128, "privileged": true}')
    assert "privileged" in str(refusal.value)

    with pytest.raises((TypeError, InvalidValue), match="privileged"):
        ramet.Policy(privileged=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("data", ["", "[]", "null", "{", '{"memory_mb": 1, "memory_mb": NaN}', b"\xff"])
def test_invalid_json_of_a_policy_raises_invalid_value(data: str | bytes) -> None:
    """No other error of a parser is raised."""
    with pytest.raises(InvalidValue):
        policies.from_json(data)


def test_a_policy_survives_a_round_trip_through_json() -> None:
    """A policy with every field, and one with none, decodes as it was encoded."""
    full = ramet.Policy(
        cpu_cores=0.5, memory_mb=128, pids=8, timeout_seconds=9.5, network="allow_list",
        allowed_endpoints=("example.org:443",), ports={"web": 80}, readonly_mounts=("/opt/data",),
        writable_mounts=("/opt/project",), tmpfs_size_mb=8,
        workspace_size_mb=8,
        max_output_bytes=1000, allowed_env_vars=("LANG",), env_vars={"A": "b"}, secrets={"token": "t"},
        allow_sub_agents=True, max_sub_agent_depth=1, max_sub_agents=2, isolation=ramet.Isolation.L1, retry_count=1,
        retry_delay_seconds=0.5,
    )  # fmt: skip

    for policy in (full, ramet.Policy()):
        assert policies.from_json(policies.to_json(policy)) == policy


def files_with(text: bytes, folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the regular files below a folder that contain a text."""
    return [file for file in folder.rglob("*") if file.is_file() and text in file.read_bytes()]


def test_a_policy_shows_no_secret() -> None:
    """NEG-7: neither repr nor str nor an error contains a secret value."""
    policy = ramet.Policy(secrets={"token": "very-secret"}, env_vars={"SETTING": "quite-private"})

    assert "very-secret" not in f"{policy!r} {policy}"
    assert "quite-private" not in f"{policy!r} {policy}"
    with pytest.raises(InvalidValue) as refusal:
        ramet.Policy(secrets={"bad/name": "very-secret"})
    assert "very-secret" not in str(refusal.value)


async def test_a_secret_is_a_file_in_memory(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """56, NEG-7: the secret is at /run/secrets/NAME, in no variable, and on no disk of the host."""
    policy = ramet.Policy(secrets={"token": "very-secret-value"})

    digest = await runtime.run_agent(agent=agents.digest, args=("/run/secrets/token",), policy=policy)
    result = await runtime.run_agent(agent=processes.environment, policy=policy)

    assert digest.output == hashlib.sha256(b"very-secret-value").hexdigest()
    assert "very-secret-value" not in str(result.output)
    assert files_with(b"very-secret-value", tmp_path) == []


async def test_166_a_printed_secret_is_masked(runtime: ramet.AgentRuntime, tmp_path: pathlib.Path) -> None:
    """166: neither the result's streams nor the log file contain the value."""
    policy = ramet.Policy(secrets={"token": "very-secret-value"})
    chunks: list[str] = []

    result = await runtime.run_agent(
        agent=agents.speak_file, args=("/run/secrets/token",), policy=policy, on_stdout=chunks.append
    )

    assert "very-secret-value" not in result.stdout + "".join(chunks)
    assert result.stdout.startswith("the token is ")
    assert files_with(b"very-secret-value", tmp_path) == []


async def test_an_unavailable_isolation_level_is_refused(runtime: ramet.AgentRuntime) -> None:
    """109: the runtime never lowers the level silently."""
    with pytest.raises(IsolationUnavailable) as refusal:
        await runtime.run_agent(agent=agents.echo, policy=ramet.Policy(isolation=ramet.Isolation.L4))

    assert refusal.value.asked == "L4"
    assert len(runtime.get_status()["sessions"]) == 0


async def test_a_session_with_an_unavailable_isolation_level_does_not_open(runtime: ramet.AgentRuntime) -> None:
    """The id stays free; a composition's policy is looked at likewise, since its steps work under it."""
    policy = ramet.Policy(isolation=ramet.Isolation.L4)
    model = ramet.ScriptedModel(["never asked"])

    with pytest.raises(IsolationUnavailable):
        async with ramet.Session(model, runtime=runtime, session_id="strict", root_policy=policy):
            pass
    with pytest.raises(IsolationUnavailable):
        await runtime.run_agent(agent=ramet.chain(agents.echo, agents.echo), policy=policy)

    assert model.requests == []
    assert len(runtime.get_status()["sessions"]) == 0
    with pytest.raises(Unknown):
        await ramet.Session.resume("strict", model, runtime=runtime)


async def test_the_default_backend_is_the_strictest_that_works(tmp_path: pathlib.Path) -> None:
    """A runtime without a `backend` gives L2 where bubblewrap works."""
    async with ramet.AgentRuntime(working_dir=tmp_path / "work") as runtime:
        result = await runtime.run_agent(
            agent=agents.echo, args=(1,), policy=ramet.Policy(isolation=ramet.Isolation.L2)
        )

    assert result.output["args"] == [1]


def test_an_unknown_backend_is_refused(tmp_path: pathlib.Path) -> None:
    """The error names the known backends."""
    with pytest.raises(RametError, match="bwrap"):
        ramet.AgentRuntime(working_dir=tmp_path, backend="docker")  # type: ignore[arg-type]


class ReapingBackend(MoonBackend):
    """Backend that counts how often the leftovers of dead kernels were removed."""

    reap_count = 0

    async def reap(self) -> Sequence[str]:
        self.reap_count += 1
        return await super().reap()


async def test_a_backend_of_the_user_removes_leftovers_before_the_first_run(tmp_path: pathlib.Path) -> None:
    """The backend does so once in the life of a runtime."""
    backend = ReapingBackend(tmp_path / "work" / ".ramet" / "runs")
    async with ramet.AgentRuntime(working_dir=tmp_path / "work", backend=backend) as runtime:
        for number in range(2):
            result = await runtime.run_agent(agent=agents.echo, args=(number,), policy=ramet.Policy())
            assert (result.output["args"], backend.reap_count) == ([number], 1)


async def test_each_isolated_agent_works_in_its_own_folder(runtime: ramet.AgentRuntime) -> None:
    """118: the working directory is the run's own, and not the host's."""
    one = await runtime.run_agent(agent=agents.working_directory)
    two = await runtime.run_agent(agent=agents.leave, args=({"a.txt": "x"},))
    three = await runtime.run_agent(agent=files.list_folders, args=(["."],))

    assert one.output != str(pathlib.Path.cwd())
    assert two.output == 1
    assert three.output["."] == []
