"""The system prompt of a fresh agent: its definition, its skills and memory, the folder's instructions."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ramet.agent.capabilities.prompt import capability_listing
from ramet.agent.definition import Agent
from ramet.agent.files.instructions import load_instructions
from ramet.agent.files.memory import memory_folder, memory_prompt
from ramet.agent.files.search_paths import SearchPath
from ramet.agent.files.skills import EVERY, load_skills, load_usable_skills, render_listing
from ramet.agent.output import OutputContract
from ramet.core.errors import InvalidValue
from ramet.core.policy.capabilities import Capability, is_code
from ramet.tools.agents.peers import lead_tools
from ramet.tools.agents.task_result import task_result_tools
from ramet.tools.memory.memory import memory_tool
from ramet.tools.memory.memory_folder import MemoryFolder
from ramet.tools.permissions.plan_mode import NAME as EXIT_PLAN_MODE
from ramet.tools.permissions.plan_mode import PROMPT as PLAN_PROMPT
from ramet.tools.permissions.plan_mode import plan_tool
from ramet.tools.python import python_tool
from ramet.tools.skills.skill_tool import NAME as SKILL
from ramet.tools.skills.skill_tool import skill_tool
from ramet.wire.code.bundle import is_user_module

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

_MAY_USE = "Your code, and the agents that you create, may use:"


def _loaded_object(agent: Agent, capability: Capability) -> tuple[Capability, Any]:
    """Return a capability and its object, if this process has loaded the module: nothing is imported for a prompt.

    A module of the host's own that no program declared counts as not loaded: a client of a server may have named it.
    """
    module, _, name = (capability.name if ":" in capability.name else f"{capability.name}:").partition(":")
    value: Any = sys.modules.get(module)
    if value is not None and is_user_module(value) and module not in agent.source_modules:
        value = None
    for step in name.split(".") if name else ():
        value = getattr(value, step, None)
    return (capability if value is not None else replace(capability, visibility="low")), value


def _skill_names(agent: Agent) -> Sequence[str]:
    """Return the skills that a definition asks for: by name, or every one by the entry `Skill` in its tools.

    An agent that another agent made has none: an agent's word grants no skills.
    """
    if SKILL in agent.disallowed_tools or (agent.ref is not None and agent.ref.path):
        return ()
    return agent.skills or ((EVERY,) if SKILL in (agent.tool_entries or ()) else ())


def _plans(agent: Agent) -> bool:
    """Return whether an agent begins in plan mode, and can present its plan."""
    return agent.permissions.mode("plan") is not None and EXIT_PLAN_MODE not in agent.disallowed_tools


class Prompts:
    """A builder of system prompts.

    Without a project folder, only the files that a definition names are read from disk.
    """

    def __init__(
        self,
        project_dir: pathlib.Path | None,
        user_dir: pathlib.Path | None,
        session: str | None = None,
        skills: Sequence[SearchPath] = (),
    ) -> None:
        self._project, self._user, self._session = project_dir, user_dir, session
        self._skills = tuple(skills)  #: where skills are found

    def system(self, agent: Agent, cwd: pathlib.Path, folder: str = "") -> str:
        """Return the system prompt: stable, so that providers can cache it. Raises Unknown for a missing skill.

        `folder` says where the agent works.
        """
        sections = [agent.primer, agent.instructions]
        if agent.capabilities:
            sections.append(
                f"{_MAY_USE}\n{capability_listing(_loaded_object(agent, each) for each in agent.capabilities)}"
            )
        sections.append(render_listing(load_skills(_skill_names(agent), self._skills)))
        if _plans(agent):
            sections.append(PLAN_PROMPT)
        notes = self.memory(agent)
        if notes is not None:
            sections.append(memory_prompt(notes))
        if self._project is not None:
            if not agent.omit_instructions:
                sections.append(load_instructions(cwd, root=self._project).text)
            sections.append(folder)
        if agent.output is not None:
            sections.append(OutputContract(agent.output).instructions())
        return "\n\n".join(section.strip() for section in sections if section.strip())

    def tools(self, agent: Agent, cwd: pathlib.Path) -> Sequence[BaseTool]:
        """Return the tools that a definition itself brings.

        A skill that cannot be used is left out: it keeps a fresh agent from starting, but no other process from
        resuming the agent.
        """
        folder = self.memory(agent)
        notes = (memory_tool(folder),) if folder is not None else ()
        skills = load_usable_skills(_skill_names(agent), self._skills)
        reading = (skill_tool([each.folder for each in skills]),) if skills else ()
        # An agent with a task works in a sandbox if it may use code; for a resumed one only its grant says so.
        is_sandboxed = agent.policy is not None or agent.concludes
        code = (python_tool(),) if is_sandboxed and (agent.setup or any(map(is_code, agent.capabilities))) else ()
        planning = (plan_tool(),) if _plans(agent) else ()
        leading = lead_tools() if agent.peers else ()
        return (*notes, *reading, *planning, *leading, *code, *(task_result_tools() if agent.concludes else ()))

    def memory(self, agent: Agent) -> MemoryFolder | None:
        """Return the folder of the agent's own notes, if it keeps any.

        Raises InvalidValue if there is no place for them.
        """
        base = self._project if agent.memory in ("project", "local") else self._user
        if agent.memory is None:
            return None
        if base is None:
            raise InvalidValue("memory", agent.memory, f"a session with a {agent.memory} folder to store it in")
        # A session id separates the notes of one user from those of another; no agent's name has an "@".
        owner = f"{agent.name}@{self._session}" if self._session else agent.name
        return memory_folder(owner, agent.memory, project_dir=self._project or base, user_dir=self._user or base)
