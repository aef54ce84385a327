"""Tools with which a model without code creates agents: CreateAgent records one, CallTask runs its tasks."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.tools import BaseTool, ToolException
from pydantic import Field

from ramet.core.ids import CallId
from ramet.core.outcome import Status
from ramet.tools.agents.agents import context_with_tree
from ramet.tools.agents.report_framing import report
from ramet.tools.arguments import Arguments, workspace_tool
from ramet.tools.context import require_current_call

CREATE, CALL = "CreateAgent", "CallTask"
_CREATED_AGENTS = "agents made by name"  #: key of `context.state`: their handles


class _Capability(Arguments):
    type: Literal["module", "class", "function", "tool"]
    name: str = Field(description="A module, `module:name` of a class or function, or a tool's name.")
    include: list[str] | None = Field(default=None, description="Only these names of it; * and ? are patterns.")
    exclude: list[str] = Field(default=[], description="None of these.")


class _Task(Arguments):
    docstring: str = Field(description="What it is to do.")
    parameters: dict[str, dict[str, Any]] = Field(default={}, description="JSON schema of each parameter, by name.")
    returns: dict[str, Any] | None = Field(default=None, description="JSON schema of the result.")


class CreateArguments(Arguments):
    name: str = Field(description="A short name, such as 'math_solver'.")
    primer: str = Field(description="Who it is and how it works: it knows nothing of this conversation.")
    tasks: dict[str, _Task] = Field(description="What it can be asked, by name.")
    capabilities: list[_Capability] = Field(default=[], description="What it may use, of what you may use yourself.")


class CallArguments(Arguments):
    agent: str = Field(description="Its handle, or the name of an agent that you made.")
    task: str
    arguments: dict[str, Any] = Field(default={}, description="By the names of the task's parameters.")


async def create_agent(arguments: CreateArguments) -> str:
    """Record an agent; return its handle, its tasks, and refused capabilities. Raises InvalidValue, Denied."""
    context, tree = context_with_tree("create other agents")
    created = await tree.create(context, _registry_entry(arguments))
    context.state.setdefault(_CREATED_AGENTS, {})[arguments.name] = created.ref
    lines = [f"{arguments.name} was created. Its handle: {created.ref}", f"{CALL} has it do one of its tasks:"]
    lines += [f"- {name}({', '.join(task.parameters)}): {task.docstring}" for name, task in arguments.tasks.items()]
    if created.dropped_names:
        lines.append(
            f"It did not get these capabilities, because you do not have them: {', '.join(created.dropped_names)}"
        )
    return "\n".join(lines)


async def call_task(arguments: CallArguments) -> str:
    """Run a task of a recorded agent, and wait for the value. Raises AgentNotResolved, InvalidValue, SpawnRefused."""
    context, tree = context_with_tree("create other agents")
    ref = context.state.get(_CREATED_AGENTS, {}).get(arguments.agent, arguments.agent)
    call_id = CallId(require_current_call().call_id)
    handle = await tree.call_task(context, ref, arguments.task, arguments.arguments, call_id=call_id)
    result = await handle.result()
    if result.status is not Status.COMPLETED:
        raise ToolException(report(result, name=handle.name))
    return report(result, name=handle.name)


def _registry_entry(arguments: CreateArguments) -> dict[str, Any]:
    return {
        "name": arguments.name,
        "primer": arguments.primer,
        "capabilities": [each.model_dump(exclude_defaults=True) for each in arguments.capabilities],
        "task_definitions": {
            name: {
                "docstring": task.docstring,
                "signature": {
                    "parameters": task.parameters,
                    "order": list(task.parameters),
                    "returns": task.returns,
                },
            }
            for name, task in arguments.tasks.items()
        },
    }


def authoring_tools() -> tuple[BaseTool, ...]:
    """Return CreateAgent and CallTask, shared by all runs: they have no state."""
    return (
        workspace_tool(
            CREATE,
            "Create an agent of your own: who it is, what it may use, and the tasks that it can be asked to do. It "
            f"stays after you have ended; {CALL} runs its tasks. It gets no capability that you lack.",
            CreateArguments,
            create_agent,
            concurrency_safe=False,
        ),
        workspace_tool(
            CALL,
            f"Have an agent that {CREATE} made do one of its tasks, and wait for the result, which has the form that "
            "the task says.",
            CallArguments,
            call_task,
            concurrency_safe=True,
            waits=True,
            repeatable=True,
        ),
    )
