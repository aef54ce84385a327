"""The arguments of `Session`: checked, and turned into the definition of its root."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec

from ramet.agent.definition import Agent, as_agent, check_model
from ramet.agent.external.external import PRESETS
from ramet.core.arguments import check_instance, check_text
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.limits import Limits
from ramet.core.policy.policy import Policy
from ramet.host.arguments import check_messages
from ramet.host.dynamic.agents import ref_of
from ramet.host.runtime import AgentRuntime
from ramet.host.trees.factory import read_only_policy

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool


def check_arguments(
    llm: object, model: object, limits: object, runtime: object, root_policy: object, history: object
) -> None:
    """Raise InvalidValue if an argument has a wrong type, or if two models are given."""
    check_model("llm", llm)
    check_model("model", model)
    if llm is not None and model is not None:
        raise InvalidValue("model", model, "None with llm: a session has one model")
    check_instance("limits", limits, Limits, "ramet.Limits")
    check_instance("runtime", runtime, (AgentRuntime, NoneType), "ramet.AgentRuntime")
    check_instance("root_policy", root_policy, (Policy, NoneType), "ramet.Policy")
    check_messages("history", history)


def sandboxed_children(cwd: pathlib.Path | None) -> Policy:
    """Return the policy that keeps a session's children in sandboxes. They may read its folder, and spawn agents."""
    return msgspec.structs.replace(read_only_policy(cwd), allow_sub_agents=True, max_sub_agents=64)


def tool_objects_of(*agents: Agent) -> list[BaseTool]:
    """Return the tool objects in the definitions; tools given by name are omitted."""
    return [entry for agent in agents for entry in agent.tool_entries or () if not isinstance(entry, str)]


def checked_folder(cwd: str | os.PathLike[str] | None) -> pathlib.Path | None:
    """Return the absolute path of a session's folder. Raises InvalidValue if there is no such folder."""
    if cwd is None:
        return None
    check_instance("cwd", cwd, (str, os.PathLike), "an existing folder")
    folder = pathlib.Path(cwd).absolute()
    if not folder.is_dir():
        raise InvalidValue("cwd", str(cwd), "an existing folder")
    return folder


def root_definition(
    agent: Agent | Mapping[str, Any] | str | None,
    definitions: Mapping[str, Agent],
    model: Any,
    system_prompt: str,
    max_turns: int,
) -> Agent:
    """Return the definition of the root: any definition may be the main agent."""
    check_text("system_prompt", system_prompt)
    if isinstance(agent, str):
        if agent not in definitions and agent not in PRESETS:
            raise Unknown("agent type", agent, tuple(sorted({*definitions, *PRESETS})))
        root = definitions[agent] if agent in definitions else Agent(name=agent, external=agent)
    else:
        root = as_agent(agent) if agent is not None else Agent(name="main", instructions=system_prompt)
    changes: dict[str, Any] = {"max_turns": root.max_turns or max_turns}
    if model is not None:
        changes["model"] = model
    if system_prompt and root.instructions != system_prompt:
        changes["instructions"] = f"{root.instructions}\n\n{system_prompt}".strip()
    if root.capabilities or root.tasks:  # The ref identifies it, so that what it makes is found again.
        changes["ref"] = ref_of(root)
    root = root.replace(**changes)
    if root.model is None and root.function is None:
        raise InvalidValue("llm", None, "a LangChain chat model, or model='provider:name'")
    return root
