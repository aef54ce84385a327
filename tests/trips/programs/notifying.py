"""A kernel that sends notifications about a tree, and is killed at a write of its record of deliveries.

`notifying.py STORE FOLDER URL KERNEL [before|after NTH]`: the process spawns the tree or resumes it. It answers a
question once the endpoint has accepted the notification about it, which the endpoint notes in `FOLDER/accepted`.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import sys

from ramet import Agent, AgentRuntime, ScriptedModel
from ramet.host.journal.journal import TREES
from ramet.host.notifications import WebhookTarget
from ramet.host.notifications.delivery_record import DELIVERIES
from ramet.host.trees.project import Project
from ramet.models.scripted.dialogue import Call
from ramet.store.contract import Store
from tests.support.store_addresses import kill_at_put, store_at

QUESTIONS = 3  #: of each run
NOTIFICATIONS = 2 * (QUESTIONS + 1)


def model() -> ScriptedModel:
    """Return the model of a lead with a child; each asks about some payments, one after the other."""
    child = Call("Agent", {"prompt": "pay", "name": "payer", "subagent_type": "general-purpose"})
    payments = [Call("pay", {"amount": number}) for number in range(QUESTIONS)]
    return ScriptedModel({"pay": [*payments, "paid"], "lead": [child, *payments, "done"]})


def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def lead(llm: ScriptedModel) -> Agent:
    """Return the root, whose payments need an approval."""
    return Agent(
        name="lead",
        model=llm,
        hooks={"PreToolUse": [lambda payload: "ask" if payload["tool_name"] == "pay" else None]},
    )


def webhook(url: str) -> WebhookTarget:
    """Return the target of this test, which gets everything."""
    return WebhookTarget(url=url, allow_private=["127.0.0.1"], all_runs=True, first_retry_s=0.002, longest_retry_s=0.05)


def store_of(address: str, kernel: str) -> Store:
    """Return the store at an address, for a kernel of that name."""
    kind, _, location = address.partition(" ")
    if kind == "sqlite":
        return store_at(address)
    from ramet.store.postgres import PostgresStore

    schema, _, dsn = location.partition(" ")
    return PostgresStore(dsn, schema=schema, kernel=kernel)


async def finish(runtime: AgentRuntime, folder: pathlib.Path) -> None:
    """Answer the questions of the runtime's tree, until it has ended."""
    while runtime.trees:
        accepted = (folder / "accepted").read_text().split()
        for tree in runtime.trees.values():
            for question in tree.inbox.pending:
                if question.id in accepted:
                    tree.inbox.answer(question.id, True)
        await asyncio.sleep(0.002)


async def wait_recorded(runtime: AgentRuntime, store: Store) -> None:
    """Return once everything is delivered, and the documents of the trees say so."""
    assert runtime.notifier is not None
    while not runtime.notifier.is_done or await store.list(DELIVERIES):  # noqa: ASYNC110 - a store wakes nobody
        await asyncio.sleep(0.002)


async def main(address: str, folder: pathlib.Path, url: str, kernel: str, kill: tuple[str, int] | None) -> None:
    """Work until the tree has ended and everything is delivered, or until the kill."""
    store = store_of(address, kernel)
    if kill is not None:
        store = kill_at_put(store, *kill, kind=DELIVERIES)
    llm = model()
    (folder / "pid").write_text(str(os.getpid()))
    async with AgentRuntime(store=store, grace_s=1.0, notify={"hook": webhook(url)}) as runtime:
        await runtime.resume(llm=llm, tools=[pay], agents=[lead(llm)])
        if not await store.list(TREES):
            await runtime.spawn(lead(llm), "lead", tools=[pay], agents=Project.open(None, user_dir=None))
        await finish(runtime, folder)
        await wait_recorded(runtime, store)
    (folder / "finished").write_text(str(os.getpid()))


if __name__ == "__main__":
    words = sys.argv[5:]
    asyncio.run(
        main(
            sys.argv[1],
            pathlib.Path(sys.argv[2]),
            sys.argv[3],
            sys.argv[4],
            (words[0], int(words[1])) if words else None,
        )
    )
