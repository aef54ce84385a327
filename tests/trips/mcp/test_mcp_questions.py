"""Progress and questions of MCP servers while a call runs, and calls that nobody waits for any more."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

import pytest

import ramet
from ramet.core.errors import InvalidValue
from ramet.core.events import ApprovalAnswered, ToolProgressed
from ramet.host.approvals import Pending
from ramet.models.scripted.dialogue import Call
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName, usual_backend
from tests.trips.kits.mcp import POLICY, agent, server
from tests.trips.kits.mcp_addresses import address_server
from tests.trips.kits.sessions import of_kind, session_events

backend = usual_backend


async def test_servers_of_both_eras_report_and_ask_while_a_call_runs(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """Reports are thinned out. Questions are in the inbox, and take only answers that fit; no time of a call runs then.

    A call that takes too long is cancelled at its server.
    """
    short_s = 10.0  # of those whose time is to pass; a busy machine may take a part of it to start them
    async with (
        address_server("address_server", tmp_path) as new,
        address_server("plain_address", tmp_path) as old,
    ):
        policy = ramet.Policy(
            memory_mb=512, allowed_endpoints=[new.endpoint, old.endpoint], readonly_mounts=POLICY.readonly_mounts
        )
        user = agent(
            new.entry(timeout_s=short_s),
            old.entry("work"),
            *(old.entry(path, timeout_s=short_s) for path in ("hang", "elicits")),
            server("plain", "reports", name="reports"),
            server("plain", "hangs", "cancelled", name="hangs", timeout_s=20),
            policy=policy,
        )
        names = ("work__work", "elicits__work", "reports__work", "mcp__greet", "mcp__sample", "hang__work")
        calls = [Call(f"mcp__{name}", {}) for name in (*names, "hangs__work", "mcp__hang")]
        async with ramet.Session(
            ramet.ScriptedModel(script=script(calls)), agents=[user], cwd=tmp_path, backend=backend
        ) as session:

            async def question(tool: str) -> Pending:
                await eventually(lambda: [each.tool for each in session.approvals.pending] == [tool])
                return session.approvals.pending[0]

            await session.ask("Begin!")
            elicits = await question("mcp__elicits")
            end = asyncio.get_running_loop().time() + short_s
            await eventually(lambda: asyncio.get_running_loop().time() > end)
            with pytest.raises(InvalidValue, match=r"answer\.name"):
                session.approvals.answer(elicits.id, True, '{"name": "A"}')
            session.approvals.answer(elicits.id, True, '{"name": "Bea", "age": 36}')
            session.approvals.answer((await question("mcp__reports")).id, False, "not now")
            session.approvals.answer((await question("mcp__mcp")).id, True, '{"name": "Ada"}')
            handle = session.handle("main/1")
            result = await handle.result()
            context, events = handle.run.context, session_events(session)
            folder = handle.run.sandbox.folder
            assert folder is not None
            cancelled = await asyncio.to_thread((folder.workspace / "cancelled").read_text)
        assert ["cancelled", "hang"] in old.record()
        await eventually(lambda: ["cancelled", "hang"] in new.record())
    answers = [each.text for each in context.history if each.type == "tool"]

    assert result.value == "I am done."
    failed = "the MCP server '{}' failed: {} did not answer within {} s"
    assert answers == [
        "work is done",
        '{"action": "accept", "content": {"name": "Bea", "age": 36}}',
        '{"action": "decline"}',
        'asked: {"action":"accept","content":{"name":"Ada"}}',
        "the MCP server 'mcp' failed: it asked for 'roots/list', and was refused",
        failed.format("hang", "work", 10),
        failed.format("hangs", "work", 20),
        failed.format("mcp", "hang", 10),
    ]
    assert elicits.question.startswith("the MCP server 'elicits' asks: Who are you?")
    assert elicits.args["fields"]["age"] == "integer, optional, minimum 0"
    progress = of_kind(events, ToolProgressed)
    for tool in ("mcp__work__work", "mcp__reports__work"):
        reports = [each for each in progress if each.tool == tool]
        assert 1 <= len(reports) <= 4, tool
        assert (reports[0].done, reports[0].total, reports[0].call_id is not None) == (0, 40, True)
    assert [each.allowed for each in of_kind(events, ApprovalAnswered)] == [True, False, True]
    assert cancelled == "cancelled True\n"


def script(*turns: list[Call]) -> dict[str, Any]:
    begin = [
        Call("Agent", {"subagent_type": "user", "prompt": f"Play {number}.", "run_in_background": True})
        for number in range(len(turns))
    ]
    return {
        "Begin!": [begin, "Begun."],
        **{f"Play {number}.": [calls, "I am done."] for number, calls in enumerate(turns)},
    }


async def test_a_call_of_a_stopped_run_is_cancelled_at_its_server(tmp_path: pathlib.Path, backend: BackendName) -> None:
    """A server of the new era loses the connection of the call; one of 2025 gets a message, and the session ends.

    A server that does not listen any more delays the end of a run by seconds.
    """
    async with (
        address_server("address_server", tmp_path) as new,
        address_server("plain_address", tmp_path) as old,
    ):
        policy = ramet.Policy(memory_mb=512, allowed_endpoints=[new.endpoint, old.endpoint])
        user = agent(new.entry(), old.entry("hang"), old.entry("deaf"), policy=policy)
        model = ramet.ScriptedModel(
            script=script(*([Call(f"mcp__{name}", {})] for name in ("mcp__hang", "hang__work", "deaf__work")))
        )
        async with ramet.Session(model, agents=[user], cwd=tmp_path, backend=backend, unattended=True) as session:
            await session.ask("Begin!")
            await eventually(
                lambda: (
                    ["begin", "hang"] in new.record()
                    and all(["call", name] in old.record() for name in ("hang", "deaf"))
                )
            )
            begin = asyncio.get_running_loop().time()
            await asyncio.gather(*(session.handle(f"main/{number}").cancel() for number in (1, 2, 3)))
            took_s = asyncio.get_running_loop().time() - begin
            await eventually(lambda: ["cancelled", "hang"] in new.record() and ["cancelled", "hang"] in old.record())
            await eventually(lambda: old.record().count(["DELETE", "hang", "session-hang"]) == 3)
            assert took_s < 45
