"""`ramet raise`: limits are raised from another process, through a folder and through a server alike."""

from __future__ import annotations

import json

import pytest

from ramet import Agent, Limits, ScriptedModel
from ramet.models.scripted.dialogue import Call
from ramet.spawn.handle import Handle
from tests.support.waiting import eventually
from tests.trips.cli.test_cli_served import ServedFolder, folder, look, served_folder

__all__ = ["folder", "served_folder"]


async def paused_run(served: ServedFolder) -> Handle:
    """Return a root that is paused at its second request."""
    agent = Agent(name="lead", model=ScriptedModel([Call("look"), "All is done."]))
    limits = Limits(model_calls=1, seconds=600, at_limit="pause")
    handle = await served.server.runtime.spawn(agent, "Begin", tools=[look], cwd=served.folder, limits=limits)
    await eventually(lambda: handle.view().state == "paused")
    return handle


@pytest.mark.parametrize("source", ["folder", "socket"])
async def test_a_paused_run_is_shown_and_goes_on_when_it_is_raised(served_folder: ServedFolder, source: str) -> None:
    """A repeated command with the same key adds nothing."""
    handle = await paused_run(served_folder)

    (row,) = [json.loads(line) for line in (await served_folder.on(source, "ps", "--json")).out.splitlines()]
    drawn = await served_folder.on(source, "tree", handle.id)
    logs = await served_folder.on(source, "logs", handle.id)
    raised = await served_folder.on(source, "raise", handle.id, "--seconds", "60", "--key", "k", "--json")
    again = await served_folder.on(source, "raise", handle.id, "--seconds", "60", "--key", "k")
    assert handle.view().state == "paused"
    enough = await served_folder.on(source, "raise", handle.id, "--calls", "1")

    assert (await handle.result()).value == "All is done."
    assert row["state"] == "paused"
    assert "paused" in drawn.out
    assert "model_calls" in logs.out
    expected = {"model_calls": 1, "seconds": 660, "at_limit": "pause"}
    assert json.loads(raised.out) == {"run": handle.id, "limits": expected}
    assert (again.status, again.out) == (0, f"the limits of {handle.id} are now model_calls 1, seconds 660\n")
    assert (enough.status, enough.out) == (0, f"the limits of {handle.id} are now model_calls 2, seconds 660\n")


@pytest.mark.parametrize("source", ["folder", "socket"])
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("raise nope --usd 1", "nope"),
        ("raise RUN", "--usd"),
        ("raise RUN --usd 1", "add.usd"),
        ("raise RUN --calls -1", "--calls"),
        ("raise RUN --calls 1.5", "--calls"),
        ("raise RUN --usd nan", "--usd"),
        ("raise RUN --calls 9007199254740992", "2^53"),
        (f"raise RUN --calls 1 --key {'x' * 300}", "key"),
    ],
)
async def test_a_raise_that_cannot_be_is_refused_in_one_line(
    served_folder: ServedFolder, source: str, words: str, named: str
) -> None:
    """Nothing is raised, and the line names what is wrong."""
    handle = await paused_run(served_folder)

    refusal = await served_folder.on(source, *words.replace("RUN", handle.id).split())

    assert (refusal.status, refusal.out) == (2, "")
    assert named in refusal.err.splitlines()[-1]
    assert handle.run.limits == Limits(model_calls=1, seconds=600, at_limit="pause")
    await handle.cancel()


@pytest.mark.parametrize("source", ["folder", "socket"])
async def test_a_paused_run_is_listed_with_its_command_and_goes_on_when_it_is_approved(
    served_folder: ServedFolder, source: str
) -> None:
    """The list has the same row by both ways; the same approval again adds nothing, and a denial comes too late."""
    handle = await paused_run(served_folder)

    (row,) = [json.loads(line) for line in (await served_folder.on(source, "approvals", "--json")).out.splitlines()]
    table = await served_folder.on(source, "approvals")
    approved = await served_folder.on(source, "approve", row["id"])
    result = await handle.result()
    again = await served_folder.on(source, "approve", row["id"])

    assert (result.value, result.usage.model_calls) == ("All is done.", 2)
    assert (row["kind"], row["run"], row["path"], row["state"]) == ("limit", handle.id, "main", "waits")
    assert (row["agent"], row["tool"], row["args"]) == ("lead", "", {})
    assert row["usage"]["model_calls"] == 1
    command = f"ramet raise {handle.id} --calls 1"
    assert row["limit"] == {
        "resource": "model_calls",
        "asked": 1,
        "left": 0,
        "scope": "main",
        "scope_run": handle.id,
        "amount": 1,
        "command": command,
    }
    assert command in table.out
    assert (approved.status, approved.out) == (0, f"{row['id']} is allowed\n")
    assert again.status in (0, 2)
    assert handle.run.limits.model_calls == 2


@pytest.mark.parametrize("source", ["folder", "socket"])
async def test_a_denied_run_ends_at_its_limit(served_folder: ServedFolder, source: str) -> None:
    """The refused request is never made."""
    handle = await paused_run(served_folder)

    (row,) = [json.loads(line) for line in (await served_folder.on(source, "approvals", "--json")).out.splitlines()]
    denied = await served_folder.on(source, "deny", row["id"], "--reason", "not today")

    assert (denied.status, denied.out) == (0, f"{row['id']} is not allowed\n")
    result = await handle.result()
    assert (result.status, result.usage.model_calls) == ("budget_exhausted", 1)
    assert (await served_folder.on(source, "approvals", "--json")).out == ""
