"""A program in several processes that uses the handles of agents which its architect created.


    python -m tests.trips.programs.handles FOLDER BACKEND STEP

Each step is a process of its own, and prints one line for each handle.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
from typing import Any

import ramet
from ramet.core.errors import AgentNotResolved, TaskFailed
from ramet.core.recipe import Recipe
from ramet.host.dynamic.registry import REGISTRY
from ramet.models.scripted.dialogue import Call

MAKE = """
with Agent(name="math_solver", primer="You solve.") as solver:
    solver.module("math", include=["sin", "tan", "pi"])
    solver.cls(Agent)
    @solver.task
    def solve() -> str:
        '''Solve this.'''
    @solver.task
    def make() -> str:
        '''Make a parser.'''
task_success(f"{solver.ref} {make()}")
"""
PARSER = """
with Agent(name="equation_parser", primer="You parse.") as parser:
    parser.module("math", include=["sin", "pi"])
    @parser.task
    def parse() -> str:
        '''Parse this.'''
task_success(str(parser.ref))
"""
LOOK = """
import math
task_success(" ".join(name for name in ("sin", "cos", "tan", "pi") if hasattr(math, name)))
"""
SCRIPT = {"Build it.": MAKE, "Make a parser.": PARSER, "Solve this.": LOOK, "Parse this.": LOOK}


def architect(*names: str, primer: str = "You make specialists.") -> ramet.Agent:
    """Return the agent at the top, which code declares."""
    script: dict[str, Any] = {prompt: [Call("python", {"code": code})] for prompt, code in SCRIPT.items()}
    policy = ramet.Policy(allow_sub_agents=True, memory_mb=1024)
    agent = ramet.Agent(name="architect", primer=primer, policy=policy, model=ramet.ScriptedModel(script=script))
    agent.cls(ramet.Agent)
    agent.module("math", include=names)

    @agent.task
    def build() -> str:
        """Build it."""

    return agent


def print_line(*words: object) -> None:
    """Print a line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")


async def print_names(runtime: ramet.AgentRuntime, handles: dict[str, str]) -> None:
    """Print the names of the module that each agent's own code has."""
    for name, handle in handles.items():
        try:
            task = await runtime.dynamic.task(f"{handle}:{name}")
            print_line(name, await task())
        except AgentNotResolved as problem:
            print_line(name, problem.kind, problem.why)
        except TaskFailed as problem:
            print_line(name, problem.reason)


async def tamper(runtime: ramet.AgentRuntime, namespace: str, name: str) -> str:
    """Give a recipe every name of two modules, with a matching hash; return its new version."""
    registry = await runtime.dynamic.registries.namespace(namespace)
    entry = registry.entry(REGISTRY, name)
    del entry["hash"]
    entry["capabilities"] = [
        *entry["capabilities"],
        {"type": "module", "name": "os"},
        {"type": "module", "name": "math"},
    ]
    forged = Recipe.from_entry(entry)
    registry.set_entry(REGISTRY, name, forged.entry())
    await registry.commit()
    return forged.version


async def main(folder: pathlib.Path, backend: Any, step: str) -> None:
    """Do one step."""
    path = folder / "handles.json"
    agent = architect(
        *(("sin", "cos", "pi") if step == "make" else ("cos", "pi", "tan")),
        primer="You make other specialists." if step == "reworded" else "You make specialists.",
    )
    async with ramet.AgentRuntime(folder, backend=backend) as runtime:
        dynamic = runtime.dynamic
        if step == "make":
            solver, parser = str(await agent.tasks["build"]()).split()
            handles = {"solve": solver, "parse": parser}
            path.write_text(json.dumps(handles))
        handles = json.loads(path.read_text())
        if step == "reworded":
            await print_names(runtime, handles)
            handles = {name: str(await dynamic.rebind(each)) for name, each in handles.items()}
            local = await dynamic.local(agent, "math_solver")
            print_line("local", str(local) == handles["solve"])
        elif step == "tampered":
            for name, namespace, below in (
                ("solve", "architect", "math_solver"),
                ("parse", "architect/math_solver", "equation_parser"),
            ):
                version = await tamper(runtime, namespace, below)
                await print_names(runtime, {name: handles[name]})
                handles[name] = f"{handles[name].rpartition('@')[0]}@{version}"
        await print_names(runtime, handles)


if __name__ == "__main__":
    asyncio.run(main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
