"""An agent creates an agent that creates an agent; the process is killed after every step. No key, no network.

    python examples/dogfood.py [--backend bwrap|local] [--dsn 'host=… user=… dbname=…' [--schema NAME]]

An architect, which is declared below, defines a math solver, in its own Python code, in its sandbox. The solver defines
an equation parser when it first needs one. Each step is a separate process, and each process is killed: in the middle,
just after an agent was defined, or at its end. The next process has the journal, and the handle of the solver as text.
At the end a process that defined none of these agents asks the solver again. With `--dsn` the journal is on PostgreSQL,
in a schema that must be new and is not removed, and each process has its own working directory.
"""

import argparse
import asyncio
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatResult

from ramet import Agent, AgentRuntime, Policy
from ramet.core.agent_ref import AgentRef

#: The code of the model of the architect: an agent, and its task as the result.
ARCHITECTS_CODE = '''
with Agent(name="math_solver", primer="You solve linear equations. You make the agents that you need.") as solver:
    solver.cls(Agent)
    solver.module("fractions", include=["Fraction"])

    @solver.task
    def solve(equation: str) -> float:
        """Solve the equation for x."""

task_success(solve)
'''
#: The code of the model of the solver: an agent for a part of its task, and the rest of the task.
SOLVERS_CODE = '''
import dataclasses

@dataclasses.dataclass
class Equation:
    slope: int
    constant: int
    right: int

with Agent(name="equation_parser", primer="You read equations.") as parser:
    @parser.task
    def parse(equation: str) -> Equation:
        """Read an equation of the form a*x + b = c."""

read = parse({equation!r})
task_success(float(fractions.Fraction(read.right - read.constant, read.slope)))
'''


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
        brief = next(each.text for each in messages if isinstance(each, HumanMessage))
        arguments = json.loads(brief.partition("```json")[2].rpartition("```")[0] or "{}")
        if brief.startswith("Read an equation"):
            left, _, right = arguments["equation"].partition("=")
            slope, _, constant = left.partition("*x")
            answer = {"slope": int(slope), "constant": int(constant.replace(" ", "") or 0), "right": int(right)}
            return _result(AIMessage(json.dumps(answer)))
        code = ARCHITECTS_CODE if brief.startswith("Make an agent") else SOLVERS_CODE.format(**arguments)
        step = sum(isinstance(each, AIMessage) for each in messages)
        if isinstance(messages[-1], ToolMessage) and messages[-1].status != "error":
            return _result(AIMessage(messages[-1].text))
        # Interrupted code is sent again: an agent that exists already with the same definition stays unchanged.
        return _result(AIMessage("", tool_calls=[tool_call(name="python", args={"code": code}, id=f"step-{step}")]))


def _result(reply: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=reply)])


# ---- the only agent that is declared in code

architect = Agent(
    name="architect",
    primer="You make specialists.",
    model=Planned(),
    policy=Policy(allow_sub_agents=True, max_sub_agent_depth=4),
)
architect.cls(Agent, visibility="high")
architect.module("fractions", include=["Fraction"])


@architect.task
def create_specialist(prompt: str) -> Callable[..., Any]:  # type: ignore[empty-body]  # the agent does this
    """Make an agent with a task that does what the prompt says, and give that task."""


# ---- a process: one step


async def step(folder: pathlib.Path, number: int, backend: Any, dsn: str, schema: str) -> None:
    """Run one step, or the rest of it; kill the process at the end of the step, or in its middle."""
    store, working_dir = None, folder / "project"
    if dsn:
        from ramet.store.postgres import PostgresStore

        store, working_dir = PostgresStore(dsn, schema=schema), folder / f"machine-{number}"
    working_dir.mkdir(exist_ok=True)
    async with AgentRuntime(working_dir, store=store, backend=backend) as runtime:
        for handle in await runtime.resume(llm=Planned()):
            result = await handle.result()
            say(f"  resumes the {handle.view().agent}: {result.status}, {shown(result.value)}")
            if number == 2:
                (folder / "handle").write_text(result.value)
        if number in (1, 3):
            kill_after_creation(runtime)
        if number == 1:
            await create_specialist("solve linear equations")
        elif number >= 3:
            solve = await runtime.dynamic.task(solver(folder))
            ref = AgentRef.parse(solver(folder).rpartition(":")[0])
            memory = await runtime.dynamic.state_of(ref)
            say(f"  {solve.agent.name} remembers: {', '.join(memory.get('solved', [])) or 'nothing yet'}")
            if number == 3:
                await solve("3*x + 6 = 0")
            elif number == 4:
                memory.set("solved", ["3*x + 6 = 0"])
                await memory.commit("what it solved")
            else:
                say(f"  {solve.agent.name} made {', '.join(await runtime.dynamic.made_by(ref))}")
                say(f"  2*x - 1 = 4: x = {await solve('2*x - 1 = 4')}")
        if number < 5:
            os.kill(os.getpid(), signal.SIGKILL)


def shown(value: Any) -> str:
    """Return a value for display: a handle without its hashes."""
    return re.sub(r"@[0-9a-f]{64}", "@…", str(value))


def solver(folder: pathlib.Path) -> str:
    """Return the handle of the solver: the only thing that a later process knows of it."""
    return (folder / "handle").read_text()


def kill_after_creation(runtime: AgentRuntime) -> None:
    """Kill this process in the middle of a step: the agent is recorded, and its creator has no reply yet."""
    create = runtime.dynamic.create

    async def create_and_die(creator: Agent, entry: Any) -> Any:
        created = await create(creator, entry)
        say(f"  {creator.name} made {created.ref.local_id}; killed")
        os.kill(os.getpid(), signal.SIGKILL)

    runtime.dynamic.create = create_and_die  # type: ignore[method-assign]


def say(text: str) -> None:
    """Print a line immediately, before the next kill."""
    print(text, flush=True)


# ---- the program


def main() -> int:
    """Run the steps, each in its own process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backend", choices=("bwrap", "local"), help="default: bwrap where it works")
    parser.add_argument(
        "--dsn", default="", help="connection string of a PostgreSQL server; default: the journal is a file"
    )
    parser.add_argument("--schema", default="dogfood", help="a new schema on that server")
    parser.add_argument("--step", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        asyncio.run(step(options.folder, options.step, options.backend, options.dsn, options.schema))
        return 0
    with tempfile.TemporaryDirectory(prefix="ramet-dogfood-") as folder:
        for number in range(1, 6):
            print(f"process {number}", flush=True)
            options_of_step = ["--dsn", options.dsn, "--schema", options.schema]
            options_of_step += ["--backend", options.backend] if options.backend else []
            argv = [sys.executable, __file__, "--step", str(number), "--folder", folder, *options_of_step]
            code = subprocess.run(argv, check=False).returncode
            if code != (0 if number == 5 else -signal.SIGKILL):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
