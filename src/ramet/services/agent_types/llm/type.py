"""The agent type "llm": a model with tools, in the host or in a sandbox, and a conversation of many turns."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from langchain_core.tools import BaseTool
from msgspec import Struct

from ramet.agent.definition import Agent
from ramet.agent.files.skills import Skill, load_skills, render_listing
from ramet.agent.loop import MAX_TURNS, record_message
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, Unknown
from ramet.core.mcp.server_entry import PREFIX, McpServer
from ramet.core.policy.capabilities import Capability
from ramet.core.policy.policy import Policy, secrets_of, variables_of
from ramet.host.session import Session
from ramet.services.agent_types import imports
from ramet.services.agent_types.bundle_operations import LoadBundle, UnloadBundle
from ramet.services.agent_types.gates import gate_of
from ramet.services.agent_types.llm.agent_operations import Compact, ListTools, LlmOperations, SetModel
from ramet.services.agent_types.llm.restart import PreviousUsage, previous_messages, previous_usage
from ramet.services.agent_types.llm.settings import MODEL, AgentSettings, code_tools, image_skills, served_skills
from ramet.services.agent_types.outcome import remaining_limits
from ramet.services.agent_types.sandbox import isolation_of, policy_of
from ramet.services.agent_types.session_agent import SessionAgent
from ramet.services.agent_types.tool_schemas import tools_of
from ramet.services.contract import AgentSpec, Image, RunningAgent
from ramet.services.formats.registry import FORMATS
from ramet.spawn.run import Run
from ramet.tools.agents.agents import spawning_tools
from ramet.tools.builtins import builtin_tools
from ramet.tools.python import NAME as PYTHON
from ramet.tools.skills.skill_tool import NAME as SKILL
from ramet.tools.skills.skill_tool import skill_tool
from ramet.tools.workspace import workspace_tools

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

FIELD: Final = "spawn_info.tools"
MCP_FIELD: Final = "spawn_info.mcp_servers"
MAX_TOOLS: Final = 200  #: the number of names in `tools`


class LlmInfo(Struct, forbid_unknown_fields=True, kw_only=True):
    """The definition of an "llm" agent.

    `model` is a name of the server's own models, "provider:model", or "offline". `tools` are names of ramet's tools
    (Read, Write, Edit, Glob, Grep, Bash, and in a sandbox `python`), "*" for all tools of the workspace, and
    "module:function" for functions of the image. The agent always has the tools and skills that its image's bundles
    declare.
    """

    model: str = ""  #: empty: the server's default
    system_prompt: str = ""
    tools: Sequence[str] = ()
    skills: Sequence[str] = ()  #: names of skills, of the image or else of the served folder's `.ramet/skills`
    mcp_servers: Sequence[str] = ()  #: names of the server's MCP servers, which run in its sandbox
    modules: Sequence[str] | None = None  #: what `python` may import; None: the top-level modules of the image
    in_image: bool = False  #: whether it works in the image's folder and reads it, or in an empty one
    spawn: bool = False  #: whether it may spawn sub-agents
    gate: str = ""  #: name of a safety policy of the server, for all tool calls of its tree; empty: no gate
    show_tools: bool = False  #: whether answers contain its tool calls, as text
    max_turns: int = MAX_TURNS


class LlmType:
    """The agent type of models.

    `models` are the server's own names for models; `default` is the model of agents without one. `mcp_servers` are the
    operator's MCP servers, by the names that agents use.
    """

    name = "llm"
    reads_files = True
    spawn_info: type = LlmInfo
    transport_formats: Sequence[str] = tuple(FORMATS)
    operations: Mapping[str, type] = {
        "list_tools": ListTools,
        "set_model": SetModel,
        "compact": Compact,
        "load_bundle": LoadBundle,
        "unload_bundle": UnloadBundle,
    }

    def __init__(
        self,
        models: Mapping[str, str | BaseChatModel] | None = None,
        *,
        default: str = "",
        mcp_servers: Mapping[str, McpServer] | None = None,
    ) -> None:
        self._models, self._default, self._mcp_servers = models or {}, default, mcp_servers or {}

    async def check(self, spec: AgentSpec) -> None:
        """Check that the agent can be opened. Raises Unknown if a model, tool, skill or safety policy does not exist.

        Raises InvalidValue for values that conflict, MissingExtra and ModelFailed for a model that this server cannot
        ask, and IsolationUnavailable.
        """
        await self._definition(spec)
        await gate_of(spec.runtime, spec.info.gate)
        spec.rules.check_model("spawn_info.model", spec.info.model or self._default)
        spec.runtime.gateway.port(self.model(spec.info.model))
        await isolation_of(spec.runtime, self._policy(spec))

    def needs_sandbox(self, info: LlmInfo, image: Image) -> bool:
        """Return whether the agent has tools or may spawn agents, which may have tools.

        Otherwise it may work in the host.
        """
        return bool(info.tools or info.spawn or info.mcp_servers or image.tools)

    async def open(self, spec: AgentSpec) -> RunningAgent:
        """Return an agent that waits for its first turn, or that resumes where another server left it.

        Raises like `check`. After a server that was killed or stopped, the agent is the same run, in the middle of its
        turn if a turn was active. After a server of an older version, which closed its agents, the agent is a new run
        with the old messages and the rest of the limits. In a sandbox, such a new run has a new folder.
        """
        policy = self._policy(spec)
        isolation = await isolation_of(spec.runtime, policy)
        earlier_usage = await previous_usage(spec)
        if spec.run:
            session, settings = await self._resume_session(spec, policy, earlier_usage)
        else:
            session = await self._start_session(spec, policy, earlier_usage)
            settings = AgentSettings(spec, session.handle(session.id).run)
        return SessionAgent(
            session,
            spec,
            isolation,
            earlier_usage.used_before(session.id),
            show_tools=spec.info.show_tools,
            operations=LlmOperations(session, spec, self.model, settings),
        )

    def model(self, name: str) -> str | BaseChatModel:
        """Return the server's model of that name, or the name itself for a provider's model.

        Raises InvalidValue if none is set.
        """
        name = name or self._default
        if not name:
            raise InvalidValue("spawn_info.model", name, "a model's name: this server has no default")
        return self._models.get(name, name)

    # ----

    def _policy(self, spec: AgentSpec) -> Policy | None:
        return policy_of(spec, may_spawn=spec.info.spawn)

    async def _start_session(self, spec: AgentSpec, policy: Policy | None, previous_usage: PreviousUsage) -> Session:
        session = Session(
            agent=await self._definition(spec),
            tools=await _tools(spec),
            cwd=_working_folder(spec),
            limits=remaining_limits(spec.limits, previous_usage.used_before("")),
            spawn=spec.info.spawn,
            runtime=spec.runtime,
            root_policy=policy,
            import_dir=spec.loaded_bundles.folder if spec.loaded_bundles is not None else None,
            gate=await gate_of(spec.runtime, spec.info.gate),
            state_owner=spec.id,
        )
        return await session.start()  # A policy adapter may need to be called.

    async def _resume_session(
        self, spec: AgentSpec, policy: Policy | None, previous_usage: PreviousUsage
    ) -> tuple[Session, AgentSettings]:
        try:
            return await self._resume_tree(spec, policy)
        except Unknown:  # An older version closed it with its server.
            gate = await gate_of(spec.runtime, spec.info.gate)
            messages = await previous_messages(
                spec, previous_usage, self.model(spec.info.model), await _tools(spec), gate
            )
            session = await self._start_session(spec, policy, previous_usage)
            for message in messages:
                record_message(session.context, message)
            settings = AgentSettings(spec, session.handle(session.id).run)
            try:
                settings.restore(await self._chosen_model(spec))
            except BaseException:
                await run_shielded(session.close("it could not be resumed"))
                raise
            return session, settings

    async def _resume_tree(self, spec: AgentSpec, policy: Policy | None) -> tuple[Session, AgentSettings]:
        model, chosen = self.model(spec.info.model), await self._chosen_model(spec)
        settings: list[AgentSettings] = []

        def prepare(run: Run) -> None:
            if spec.loaded_bundles is not None:
                run.request = dataclasses.replace(run.request, import_dir=spec.loaded_bundles.folder)
            settings.append(AgentSettings(spec, run))
            settings[-1].restore(chosen)

        session = await Session.resume(
            spec.run,
            None if isinstance(model, str) else model,
            await _tools(spec),
            agents=[await self._definition(spec)] if spec.info.mcp_servers else (),
            cwd=_working_folder(spec),
            runtime=spec.runtime,
            secrets=secrets_of(policy),
            env_vars=variables_of(policy),
            gate=await gate_of(spec.runtime, spec.info.gate),
            prepare=prepare,
        )
        return session, settings[-1]

    async def _chosen_model(self, spec: AgentSpec) -> str | BaseChatModel | None:
        """Return the model that was set last; None if none was.

        Raises like `model`, and if no rule allows the model.
        """
        document = await (await spec.runtime.open_store()).get(MODEL, spec.id)
        if document is None or not (name := document.data.decode()):
            return None
        spec.rules.check_model("model", name)
        return self.model(name)

    async def _definition(self, spec: AgentSpec) -> Agent:
        """Read the agent's definition from the disk in a thread, without blocking the event loop.

        Raises Unknown, InvalidValue.
        """
        return await in_thread(lambda: self._read_definition(spec), name="ramet-definition")

    def _read_definition(self, spec: AgentSpec) -> Agent:
        info: LlmInfo = spec.info
        _read_tools(spec)
        _working_folder(spec)
        code: tuple[Capability, ...] = ()
        if PYTHON in info.tools:
            names = info.modules if info.modules is not None else imports.top_level(spec.image.folders)
            code = tuple(Capability("module", each) for each in names)
        elif info.modules:
            raise InvalidValue("spawn_info.modules", list(info.modules), f"none without the tool {PYTHON!r}")
        return Agent(
            name=spec.name,
            instructions=f"{info.system_prompt}\n\n{render_listing(_read_skills(spec))}".strip(),
            model=self.model(info.model),
            max_turns=info.max_turns,
            capabilities=code,
            mcp=self._servers(spec),
        )

    def _servers(self, spec: AgentSpec) -> tuple[McpServer, ...]:
        """Return the MCP servers that the agent names. Raises Unknown, and InvalidValue for an agent in the host."""
        names = spec.info.mcp_servers
        if names and spec.policy is None:
            raise InvalidValue(MCP_FIELD, list(names), "none without a policy: servers do not run in the host")
        for name in names:
            if name not in self._mcp_servers:
                raise Unknown("MCP server", name, tuple(self._mcp_servers))
        spec.rules.check_tools(MCP_FIELD, (f"{PREFIX}{name}" for name in names))
        return tuple(self._mcp_servers[name] for name in dict.fromkeys(names))


def _read_skills(spec: AgentSpec) -> Sequence[Skill]:
    """Return the skills that the agent names, and those that its image declares. Raises Unknown, InvalidValue."""
    search_paths = (*image_skills(spec), *served_skills(spec.runtime))  # The image comes first.
    return load_skills((*spec.image.preloaded_skills, *spec.info.skills), search_paths)


def _working_folder(spec: AgentSpec) -> pathlib.Path | None:
    """Return the agent's working folder; None for an empty folder of its sandbox. Raises InvalidValue."""
    if spec.info.in_image:
        if spec.policy is None or len(spec.image.folders) != 1:
            raise InvalidValue("spawn_info.in_image", True, "it only with a policy and an image of one bundle")
        return spec.image.folders[0]
    return spec.folder if spec.policy is None else None  # Inside, only mounts exist.


async def _tools(spec: AgentSpec) -> tuple[BaseTool, ...]:
    """Read the tools from the disk in a thread, without blocking the event loop. Raises like `_read_tools`."""
    return await in_thread(lambda: _read_tools(spec), name="ramet-tools")


def _read_tools(spec: AgentSpec) -> tuple[BaseTool, ...]:
    """Return the tools that the agent names, and the tools that its image declares.

    Raises Unknown for an unknown name. Raises InvalidValue for code that would run in the host, for a function that
    does not exist or cannot be a tool, for two tools of one name, and for too many names.
    """
    if len(spec.info.tools) > MAX_TOOLS:
        raise InvalidValue(FIELD, f"{len(spec.info.tools)} names", f"at most {MAX_TOOLS}")
    workspace = [each.name for each in workspace_tools()]
    stock, tools = builtin_tools({}), dict[str, BaseTool]()
    references = [each for each in spec.info.tools if ":" in each]
    if references and spec.policy is None:
        raise InvalidValue(FIELD, references[0], "it only with a policy: code of an image does not run in the host")
    declared_tools = {each.reference: each for each in spec.image.tools}
    declared_tools |= {each.reference: each for each in tools_of(references, spec.image.folders, FIELD)}
    for name in (each for each in spec.info.tools if ":" not in each):
        if name == PYTHON and spec.policy is None:
            raise InvalidValue(FIELD, name, "it only with a policy: code does not run in the host")
        if name != "*" and name not in (*workspace, PYTHON):
            raise Unknown("tool", name, (*workspace, PYTHON, "*", *declared_tools))
        tools |= {each: stock[each] for each in (workspace if name == "*" else [name])}
    spec.rules.check_tools(FIELD, (*tools, *declared_tools))
    spawning_names = {each.name for each in spawning_tools()} if spec.info.spawn else set[str]()
    for each in code_tools(declared_tools.values()):
        if each.name in tools or each.name in spawning_names:
            raise InvalidValue(FIELD, each.name, "one tool of each name")
        tools[each.name] = each
    if skills := _read_skills(spec):  # An agent of no tool may have it, too: it reads these folders alone.
        tools[SKILL] = skill_tool([each.folder for each in skills])
    return tuple(tools.values())
