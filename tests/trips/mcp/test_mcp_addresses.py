"""MCP servers at addresses, in other processes: by its library, and one that knows only the protocol of 2025."""

from __future__ import annotations

import asyncio
import importlib
import pathlib

import pytest

import ramet
from ramet.core.outcome import Status
from ramet.host.serialize.recipes import recipe
from ramet.models.scripted.dialogue import Call
from tests.support.tls import make_certificate
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.kits.mcp import agent, talk
from tests.trips.kits.mcp_addresses import address_server
from tests.trips.mcp.test_mcp_servers import FLAT_KB, reset_peak_kb

backend = usual_backend
SECRET = "k-53cr3t-k"


async def test_an_agent_uses_servers_at_addresses_of_both_eras(
    tmp_path: pathlib.Path, backend: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers have values of variables and secrets, which are recorded nowhere; a session of 2025 is ended."""
    certificate = str(await asyncio.to_thread(make_certificate, tmp_path))
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    async with (
        address_server("address_server", tmp_path, certificate) as new,
        address_server("plain_address", tmp_path) as old,
    ):
        secure = new.entry(url=f"https://{new.endpoint}/mcp")
        headers = {"Authorization": "Bearer ${KEY}", "X-Kind": "in ${UNIT}"}
        policy = ramet.Policy(
            memory_mb=512,
            allowed_endpoints=[new.endpoint, old.endpoint],
            env_vars={"UNIT": "metres"},
            secrets={"KEY": SECRET},
        )
        user = agent({**secure, "headers": headers}, old.entry("work"), policy=policy)
        done = await talk(
            tmp_path,
            backend,
            user,
            Call("mcp__mcp__add", {"a": 2, "b": 3}),
            Call("mcp__mcp__version", {}),
            Call("mcp__work__work", {}),
        )
        new_record, old_record = new.record(), old.record()

    assert done.outputs == ["ok: 5", "ok: 2026-07-28", "ok: work is done"]
    assert done.notices == []
    shown = {"authorization": f"Bearer {SECRET}", "x-kind": "in metres", "accept-encoding": "identity"}
    assert [each for each in new_record if each != ["POST", "/mcp", shown]] == []
    assert ["initialize", "work", "2025-11-25", ["elicitation"]] in old_record
    assert ["session", "work", "session-work", "2025-06-18"] in old_record
    assert old_record[-1] == ["DELETE", "work", "session-work"]
    assert await asyncio.to_thread(files_with, tmp_path, SECRET) == []
    assert SECRET not in str(recipe(user.replace(mcp=[new.entry(headers={"X-Key": SECRET})])))


def files_with(folder: pathlib.Path, text: str) -> list[pathlib.Path]:
    """Return the files that hold a text, except records of servers."""
    files = [each for each in folder.rglob("*") if each.is_file() and each.suffix != ".jsonl"]
    return [each for each in files if text.encode() in each.read_bytes()]


async def test_an_address_is_reached_only_by_the_right_to_it(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A policy has to list it; a name that leads to a private address, and a redirect to elsewhere, lead nowhere."""
    async with address_server("plain_address", tmp_path) as server:
        port = server.endpoint.partition(":")[2]
        named = {"name": "named", "url": f"http://localhost:{port}/work"}
        begin = [Call("Agent", {"subagent_type": name, "prompt": "Go."}) for name in ("bare", "unlisted")]
        definitions = [
            ramet.Agent(name="bare", description="Has no policy", mcp=[server.entry()]),
            ramet.Agent(name="unlisted", description="Lists another", mcp=[server.entry()], policy=ramet.Policy()),
        ]
        model = ramet.ScriptedModel([begin, "Done."])
        async with ramet.Session(model, agents=definitions, cwd=tmp_path, unattended=True) as session:
            await session.ask("Begin!")
            bare, unlisted = (each.text for each in session.messages if each.type == "tool")
        policy = ramet.Policy(memory_mb=512, allowed_endpoints=[server.endpoint, f"localhost:{port}"])
        user = agent(named, server.entry("redirecting"), server.entry("refusing"), policy=policy)
        done = await talk(tmp_path, backend, user, Call("mcp__named__work", {}))

    assert "none for an agent that works in the host" in bare
    assert f"an address within policy.allowed_endpoints: '{server.endpoint}' is not among them" in unlisted
    assert done.result.status is Status.COMPLETED
    assert done.outputs[0].startswith("error: There is no tool named 'mcp__named__work'")
    notices = "\n".join(done.notices)
    assert "'named' failed: localhost leads to 127.0.0.1: its address is not public" in notices
    assert f"'redirecting' failed: error -32600: Redirect to http://localhost:{port}/work not followed" in notices
    assert "'refusing' failed: it refused the connection (HTTP 401)" in notices
    assert server.record() == []


async def test_an_address_that_misbehaves_costs_its_own_calls(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A call has a result that names the reason, the turn goes on, and the host's memory is flat."""
    modes = ("asks", "floods", "huge", "endless", "parts", "bomb", "cut", "reopening", "broken", "slow")
    importlib.import_module("ramet.host.mcp.server_session")
    silent_modes = ("reopening", "slow")  # Only these have a short time: the others answer, as soon as the machine can.
    async with address_server("plain_address", tmp_path) as server:
        entries = [server.entry(mode, timeout_s=10 if mode in silent_modes else 60) for mode in modes]
        user = agent(*entries, policy=server.policy())
        peak_kb = reset_peak_kb()
        done = await talk(
            tmp_path, backend, user, [Call(f"mcp__{mode}__work", {}) for mode in modes], Call("mcp__cut__work", {})
        )
        grown_kb = reset_peak_kb(read_only=True) - peak_kb
        opened = [each for each in server.record() if each == ["GET", "reopening"]]

    assert done.result.status is Status.COMPLETED
    outputs = dict(zip([*modes, "cut again"], done.answers, strict=True))
    failed = "the MCP server '{}' failed: "
    assert outputs["asks"] == "refused with [-32601, -32601]"
    assert outputs["floods"] == "floods is done"
    assert outputs["huge"] == failed.format("huge") + "it sent a message above a bound: at most 4194304 bytes"
    assert outputs["endless"] == failed.format("endless") + "it sent a message above a bound: at most 4194304 bytes"
    assert outputs["parts"] == failed.format("parts") + "it sent a message above a bound: at most 100000 parts"
    assert outputs["bomb"] == failed.format("bomb") + "its answer is compressed, which was not asked for"
    assert outputs["cut"] == outputs["cut again"] == failed.format("cut") + "SSE stream ended without a response"
    assert outputs["broken"].startswith("error -32700: Failed to parse JSON response")
    for mode in silent_modes:
        assert outputs[mode] == failed.format(mode) + "work did not answer within 10 s"
    assert 2 < len(opened) < 40, "streams were opened again and again"
    assert "'asks' asked for 'roots/list', and was refused" in "\n".join(done.notices)
    assert grown_kb < FLAT_KB
