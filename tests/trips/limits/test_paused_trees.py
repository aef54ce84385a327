"""What the owner of a paused tree sees and decides: the limits to raise, an end instead, and the events of a turn."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Any

from ramet.core.events import Event, LimitPaused, LimitsRaised, SandboxStarted
from ramet.core.limits import Limits
from ramet.core.outcome import Status
from ramet.core.policy.policy import Policy
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.host.trees.exhausted_limits import ExhaustedLimit, end_at_limit, exhausted_limits
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import ScriptedModel
from ramet.tools.spawn_request import SpawnRequest
from ramet.tools.workspace import workspace_tools
from tests.support.waiting import eventually
from tests.trips.kits.isolated import BackendName, backend
from tests.trips.kits.pausing import noting, open_gate, paused, pausing
from tests.trips.kits.sessions import has_no_reservation, of_kind, session_events, specialist_call

__all__ = ["backend"]


def limits_of(session: Session[Any]) -> list[ExhaustedLimit]:
    """Return the limits at which the tree of a session is paused."""
    (tree,) = session.runtime.trees.values()
    return exhausted_limits(tree.tree.register)


async def test_each_paused_limit_says_what_is_used_and_what_a_raise_must_be() -> None:
    """Two runs wait at one limit, one at its own; a raise that is too small leaves the rest to raise."""
    model = ScriptedModel({"": ["found"], "Go.": ["done"]})
    async with Session(model, limits=pausing(model_calls=2)) as session:
        own = await session.spawn(SpawnRequest(prompt="x", mode="fresh", name="own", limits=Limits(tokens=100)))
        await paused(session, "main/own")
        await (await session.spawn(SpawnRequest(prompt="y", mode="fresh"))).result()
        await (await session.spawn(SpawnRequest(prompt="y", mode="fresh"))).result()
        for name in ("first", "second"):
            await session.spawn(SpawnRequest(prompt="y", mode="fresh", name=name))
            await paused(session, f"main/{name}")

        tokens, calls = limits_of(session)
        assert (tokens.run, tokens.scope, tokens.resource, tokens.limit, tokens.used) == (
            own.id,
            "main/own",
            "tokens",
            100,
            0,
        )
        assert tokens.suggestion == tokens.asked - 100 > 100
        assert (calls.run, calls.scope, calls.resource, calls.limit, calls.used) == (
            session.id,
            "main",
            "model_calls",
            2,
            2,
        )
        assert (calls.asked, calls.suggestion, calls.waiting) == (1, 2, ("main/first", "main/second"))

        await own.raise_limits(Limits(tokens=50), key=tokens.key)
        assert await own.raise_limits(Limits(tokens=50), key=tokens.key) == Limits(tokens=150)
        again = next(each for each in limits_of(session) if each.resource == "tokens")
        assert (again.limit, again.suggestion) == (150, tokens.asked - 150)
        assert again.key != tokens.key


async def test_a_limit_that_is_ended_ends_what_waits_there_and_what_comes_later() -> None:
    """Nothing more is asked, nothing stays reserved; the status is that of a limit that ends."""
    gate = open_gate()
    async with Session(ScriptedModel(noting(5)), [gate.tool], limits=pausing(model_calls=2)) as session:
        turn = asyncio.create_task(session.ask("Go."))
        await paused(session)
        (tree,) = session.runtime.trees.values()
        end_at_limit(tree.tree.register, limits_of(session)[0])

        result = await turn
        assert (result.status, result.usage.model_calls) == (Status.BUDGET_EXHAUSTED, 2)
        assert result.error is not None
        assert result.error.scope == "main"
        assert (await session.ask("Go on.")).status is Status.BUDGET_EXHAUSTED
        assert has_no_reservation(session)


async def test_a_sandboxed_conversation_at_a_limit_that_is_ended_starts_no_process(
    tmp_path: pathlib.Path, backend: BackendName
) -> None:
    """The conversation has given its process up: its request is refused, and nothing is started for that."""
    model = ScriptedModel([Call("Bash", {"command": "echo one"}), "never"])
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        session = Session(
            model,
            workspace_tools(),
            runtime=runtime,
            root_policy=Policy(),
            unattended=True,
            limits=pausing(model_calls=1),
        )
        turn = asyncio.create_task(session.ask("Go."))
        root = (await paused(session)).run
        await eventually(lambda: root.sandbox.current is None)
        end_at_limit(runtime.trees[root.info.id].tree.register, limits_of(session)[0])

        result = await turn
        assert (result.status, len(model.requests)) == (Status.BUDGET_EXHAUSTED, 1)
        assert len(of_kind(session_events(session), SandboxStarted)) == 1
        assert has_no_reservation(session)


async def test_a_reader_of_a_turn_learns_of_pauses_below() -> None:
    """The stream of the root's turn has the pause of a child, and the raise with which it goes on."""
    model = ScriptedModel({"Go.": [specialist_call("part one", "one"), "all found"], "part one": ["found"]})
    async with Session(model, limits=pausing(model_calls=1)) as session:
        read: list[Event] = []

        async def submit() -> None:
            async for item in session.submit_message("Go."):
                if isinstance(item, LimitPaused | LimitsRaised):
                    read.append(item)
                    if isinstance(item, LimitPaused):
                        await session.raise_limits(Limits(model_calls=2))

        await asyncio.wait_for(submit(), 180)
        assert [(type(each), each.path) for each in read] == [(LimitPaused, "main/one"), (LimitsRaised, "main")]
        assert session.result is not None
        assert session.result.value == "all found"
