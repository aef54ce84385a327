"""A tree of ten agents whose process is killed twice, without a repeated side effect. No key, no network.

    python examples/survives_kill.py [--backend bwrap|local] [--dsn 'host=… user=… dbname=…' [--schema NAME]]

A lead, which is a language model, starts three clerks. Each clerk has a region counted by a function in a sandbox,
which has a town counted by another function, and then makes a payment: three payments of clerks and one of the lead.
This program starts a kernel (`AgentRuntime`) in a separate process, which kills itself with SIGKILL while sandboxes
run. A second kernel resumes the tree, and kills itself in the middle of a payment. A third kernel finishes the tree.
The bank makes a payment once per key. The key is the step of the call, which is the same in every process. With
`--dsn` the journal is on PostgreSQL, in a schema that must be new. The schema is not removed.
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
    """Count the largest town of a region. Runs in its own sandbox."""
    return PEOPLE[region]


def survey(region: str) -> str:
    """Have a town counted by a child. Runs in a sandbox, too."""
    result = spawn_sub_agent(agent=town, args=(region,), policy=Policy(memory_mb=96, cpu_cores=0.2))
    return f"{region}: {result.output} people"


#: The replies of the model to a task, in order: calls as (tool, arguments), or a final text.
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
    """A substitute for a real model. Like a real one, it is stateless: the conversation holds all messages."""

    model_name: str = "planned"

    @property
    def _llm_type(self) -> str:
        return "planned"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        """Return the model itself: it knows its tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        at = next(i for i, each in enumerate(messages) if isinstance(each, HumanMessage) and each.text in PLANS)
        replies = sum(isinstance(each, AIMessage) for each in messages[at:])
        step = PLANS[messages[at].text][replies]
        if isinstance(step, str):
            reply = AIMessage(step)
        else:
            calls = [tool_call(name=name, args=args, id=f"{at}-{replies}-{n}") for n, (name, args) in enumerate(step)]
            reply = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=reply)])


class Bank:
    """An external system: it makes a payment once per key, however often it is requested."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._requests, self._payments = folder / "asked", folder / "made"
        self._payments.mkdir(exist_ok=True)

    def pay(self, key: str, whom: str) -> str:
        """Make the payment, or report that it was made before."""
        with self._requests.open("a") as file:
            file.write(f"{key} {whom}\n")
        try:
            with (self._payments / key.replace(":", "-")).open("x") as file:
                file.write(whom)
        except FileExistsError:
            return f"{whom} had been paid"
        return f"{whom} is paid"

    def requested(self) -> int:
        """Return the number of requests."""
        return len(self._requests.read_text().splitlines()) if self._requests.exists() else 0

    def payments(self) -> list[str]:
        """Return the recipients, one for each payment."""
        return sorted(file.read_text() for file in self._payments.iterdir())


def journal(folder: pathlib.Path, dsn: str, schema: str, *, read_only: bool = False) -> Store:
    """Return the store of the journal."""
    if not dsn:
        return SqliteStore(folder / "journal.db", read_only=read_only)
    from ramet.store.postgres import PostgresStore

    return PostgresStore(dsn, schema=schema, read_only=read_only)


# ---- a kernel: the process that owns the tree


async def kernel(folder: pathlib.Path, store: Store, dies: str, backend: str | None) -> None:
    """Resume the tree of the journal, or start it. Kill this process at the moment that `dies` names."""
    bank, model = Bank(folder), Planned()

    async def pay(whom: str) -> str:
        """Make a payment."""
        answer = bank.pay(require_current_call().step_id, whom)
        if dies == "while-it-pays":
            os.kill(os.getpid(), signal.SIGKILL)  # The payment is made, and the result is not recorded.
        return answer

    # A `repeatable` tool is called again after a crash, with the same step. Other calls are reported as interrupted.
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


def run_kernel(folder: pathlib.Path, dsn: str, schema: str, dies: str, backend: str | None) -> int:
    """Run one kernel, and return the exit status of its process."""
    store_options = ["--dsn", dsn, "--schema", schema]
    command = [sys.executable, __file__, "--kernel", str(folder), "--dies", dies, *store_options]
    return subprocess.run(command + (["--backend", backend] if backend else []), check=False).returncode


async def count_agents(store: Store) -> tuple[int, int]:
    """Return the number of recorded agents, and the number of ended ones."""
    await store.open()
    types = [each.type for each in await store.read(limit=100_000)]
    await store.close()
    return types.count("run_spawned"), types.count("run_ended")


def main(dsn: str, schema: str, backend: str | None) -> int:
    """Run three kernels, one after the other, and print the result of the tree."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        bank = Bank(folder)
        for number, dies in enumerate(("while-sandboxes-work", "while-it-pays", ""), 1):
            code = run_kernel(folder, dsn, schema, dies, backend)
            outcome = f"killed {dies.replace('-', ' ')}" if code == -signal.SIGKILL else f"ended with {code}"
            spawned, ended = asyncio.run(count_agents(journal(folder, dsn, schema, read_only=True)))
            agents = f"agents spawned {spawned}, ended {ended}"
            print(f"kernel {number}: {outcome}; {agents}; payments made {len(bank.payments())}")
        status, value, below = json.loads((folder / "result").read_text())
        print(f"the tree: {status}, {1 + below} agents: {value}")
        paid = bank.payments()
        print(f"payments: {', '.join(paid)}; requested {bank.requested()} times, made {len(paid)} times")
    return 0 if status == "completed" and paid == sorted([*PEOPLE, "printer"]) else 1


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    options.add_argument("--backend", choices=("bwrap", "local"), help="default: bwrap where it works")
    options.add_argument(
        "--dsn", default="", help="connection string of a PostgreSQL server; default: the journal is a file"
    )
    options.add_argument("--schema", default="survives_kill", help="a new schema on that server")
    options.add_argument("--kernel", type=pathlib.Path, help=argparse.SUPPRESS)
    options.add_argument("--dies", default="", help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.kernel is not None:
        store = journal(arguments.kernel, arguments.dsn, arguments.schema)
        asyncio.run(kernel(arguments.kernel, store, arguments.dies, arguments.backend))
    else:
        sys.exit(main(arguments.dsn, arguments.schema, arguments.backend))
