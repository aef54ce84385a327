"""The agent that works on one task, and the spawn request of such a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ramet.agent.capabilities.task import Task
from ramet.agent.definition import Agent
from ramet.core.policy.capabilities import is_code
from ramet.core.policy.policy import Policy
from ramet.host.dynamic.agents import ref_of
from ramet.tools.spawn_request import SpawnRequest


def task_agent(task: Task) -> Agent:
    """Return the agent that works on one task: it answers in the task's form, and may conclude."""
    agent = task.agent
    assert isinstance(agent, Agent), "tasks are declared on agents"
    policy = agent.policy
    if policy is None and (agent.setup or any(map(is_code, agent.capabilities))):
        policy = Policy(allow_sub_agents=True)  # Code that a model writes runs in a sandbox of its own.
    return dataclasses.replace(
        agent, output=task.output, concludes=True, ref=ref_of(agent), policy=policy, initial_prompt=""
    )


def task_request(task: Task, arguments: Mapping[str, Any], *, name: str | None = None) -> SpawnRequest:
    """Return the spawn request of a run that works on a task."""
    return SpawnRequest(
        agent=task_agent(task),
        prompt=task.prompt(arguments),
        name=name or task.agent.name,
        description=task.name,
        mode="fresh",
        branch=task.branch,
    )
