"""A tree of ten agents whose process is killed twice, and which ends with nothing done twice. No key, no network.

    python examples/survives_kill.py [--backend bwrap|local] [--dsn 'host=… user=… dbname=…' [--schema NAME]]

A lead, which is a language model, sends three clerks; each has a region counted by a function in a sandbox, which has a
town counted by another, and then pays for it: 3 payments of clerks and one of the lead's. This program starts a kernel
(`AgentRuntime`) in a process of its own, which kills itself with SIGKILL while sandboxes are at work; a second one goes
on, and kills itself in the middle of a payment; a third brings the tree to its end. The bank makes a payment once per
key, which is the step of the call, the same in every process. With `--dsn` the journal is on PostgreSQL, in a schema
that must be new, and is left there.
"""

import argparse
import asyncio
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool

from ramet import Agent, AgentRuntime, Policy
from ramet.core.events import SandboxStarted
from ramet.store.contract import Store
from ramet.store.sqlite.store import SqliteStore
from ramet.sub_agent_client import spawn_sub_agent
from ramet.tools.context import require_current_call

PEOPLE = {"north": 2000, "east": 300, "south": 2500}


def town(region: str) -> int:
    """Count the largest town of a region. Works in a sandbox of its own."""
    return PEOPLE[region]


def survey(region: str) -> str:
    """Have a town counted by a child. Works in a sandbox, too."""
    result = spawn_sub_agent(agent=town, args=(region,), policy=Policy(memory_mb=96, cpu_cores=0.2))
    return f"{region}: {result.output} people"


#: What the model says to a brief, one reply after the other: calls as (tool, arguments), or a last word.
PLANS: dict[str, list[Any]] = {
    "count the country": [
        [("Agent", {"subagent_type": "clerk", "prompt": f"clerk of {region}"}) for region in PEOPLE],
        [("pay", {"whom": "printer"})],
        "the country is counted",
    ],
    **{
        f"clerk of {region}": [
            [("Agent", {"subagent_type": "surveyor", "prompt": region})],
            [("pay", {"whom": region})],
            f"{region} is counted and paid",
        ]
        for region in PEOPLE
    },
}


class Planned(BaseChatModel):
    """Stands in for a real model. It keeps nothing, as real ones do not: what was said is in the conversation."""

    model_name: str = "planned"

    @property
    def _llm_type(self) -> str:
        return "planned"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """It knows its tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        at = next(i for i, each in enumerate(messages) if isinstance(each, HumanMessage) and each.text in PLANS)
        said = sum(isinstance(each, AIMessage) for each in messages[at:])
        step = PLANS[messages[at].text][said]
        if isinstance(step, str):
            reply = AIMessage(step)
        else:
            calls = [tool_call(name=name, args=args, id=f"{at}-{said}-{n}") for n, (name, args) in enumerate(step)]
            reply = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=reply)])


class Bank:
    """The world outside: it makes a payment once per key, however often it is asked."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._asked, self._made = folder / "asked", folder / "made"
        self._made.mkdir(exist_ok=True)

    def pay(self, key: str, whom: str) -> str:
        """Pay, or say that it was paid."""
        with self._asked.open("a") as file:
            file.write(f"{key} {whom}\n")
        try:
            with (self._made / key.replace(":", "-")).open("x") as file:
                file.write(whom)
        except FileExistsError:
            return f"{whom} had been paid"
        return f"{whom} is paid"

    def asked(self) -> int:
        """How often it was asked."""
        return len(self._asked.read_text().splitlines()) if self._asked.exists() else 0

    def made(self) -> list[str]:
        """Whom it paid, one for each payment."""
        return sorted(file.read_text() for file in self._made.iterdir())


def journal(folder: pathlib.Path, dsn: str, schema: str, *, read_only: bool = False) -> Store:
    """Where it is all on record."""
    if not dsn:
        return SqliteStore(folder / "journal.db", read_only=read_only)
    from ramet.store.postgres import PostgresStore

    return PostgresStore(dsn, schema=schema, read_only=read_only)


# ---- a kernel: a process that owns the tree, until it dies


async def kernel(folder: pathlib.Path, store: Store, dies: str, backend: str | None) -> None:
    """Go on with the tree that the journal holds, or begin it; kill this process at the moment that `dies` names."""
    bank, model = Bank(folder), Planned()

    async def pay(whom: str) -> str:
        """Pay somebody."""
        answer = bank.pay(require_current_call().step_id, whom)
        if dies == "while-it-pays":
            os.kill(os.getpid(), signal.SIGKILL)  # The payment is made, and nobody has heard of it.
        return answer

    # Who says `repeatable` is called again after a crash, with the same step; any other is told as cut off.
    tools = [StructuredTool.from_function(coroutine=pay, name="pay", metadata={"repeatable": True})]
    agents = {
        "clerk": Agent(name="clerk", description="counts a region", model=model),
        "surveyor": Agent(
            name="surveyor",
            description="counts",
            function=survey,
            policy=Policy(allow_sub_agents=True, memory_mb=256, cpu_cores=0.5),
        ),
    }
    async with AgentRuntime(folder, store=store, backend=backend, grace_s=1.0) as runtime:
        handles = await runtime.resume(llm=model, tools=tools, agents=list(agents.values()))
        if handles:
            [handle] = handles
        else:
            lead = Agent(name="lead", model=model)
            handle = await runtime.spawn(lead, "count the country", tools=tools, agents=agents)
        if dies == "while-sandboxes-work":
            async for event in runtime.trees[handle.id].recorder.subscribe(past=False).items():
                if isinstance(event, SandboxStarted):
                    os.kill(os.getpid(), signal.SIGKILL)
        result = await handle.result()
        (folder / "result").write_text(json.dumps([result.status, result.value, result.usage_subtree.agents]))


# ---- the program that starts kernels


def live(folder: pathlib.Path, dsn: str, schema: str, dies: str, backend: str | None) -> int:
    """One life of a kernel; how its process ended."""
    where = ["--dsn", dsn, "--schema", schema]
    command = [sys.executable, __file__, "--kernel", str(folder), "--dies", dies, *where]
    return subprocess.run(command + (["--backend", backend] if backend else []), check=False).returncode


async def born_and_ended(store: Store) -> tuple[int, int]:
    """How many agents the journal knows of, and how many of these have ended."""
    await store.open()
    types = [each.type for each in await store.read(limit=100_000)]
    await store.close()
    return types.count("run_spawned"), types.count("run_ended")


def main(dsn: str, schema: str, backend: str | None) -> int:
    """Let three kernels live, and tell what became of the tree."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        bank = Bank(folder)
        for number, dies in enumerate(("while-sandboxes-work", "while-it-pays", ""), 1):
            code = live(folder, dsn, schema, dies, backend)
            how = f"killed {dies.replace('-', ' ')}" if code == -signal.SIGKILL else f"ended with {code}"
            born, ended = asyncio.run(born_and_ended(journal(folder, dsn, schema, read_only=True)))
            print(f"kernel {number}: {how}; agents born {born}, ended {ended}; payments made {len(bank.made())}")
        status, value, below = json.loads((folder / "result").read_text())
        print(f"the tree: {status}, {1 + below} agents: {value}")
        paid = bank.made()
        print(f"payments: {', '.join(paid)}; asked for {bank.asked()} times, made {len(paid)} times")
    return 0 if status == "completed" and paid == sorted([*PEOPLE, "printer"]) else 1


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    options.add_argument("--backend", choices=("bwrap", "local"), help="default: bwrap where it works")
    options.add_argument("--dsn", default="", help="of a PostgreSQL server; default: the journal is a file")
    options.add_argument("--schema", default="survives_kill", help="a new one on that server")
    options.add_argument("--kernel", type=pathlib.Path, help=argparse.SUPPRESS)
    options.add_argument("--dies", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.kernel is not None:
        store = journal(given.kernel, given.dsn, given.schema)
        asyncio.run(kernel(given.kernel, store, given.dies, given.backend))
    else:
        sys.exit(main(given.dsn, given.schema, given.backend))
