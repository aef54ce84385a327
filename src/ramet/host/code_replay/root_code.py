"""The code that is compared with a journal: the definition of a root, and of what it may spawn."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ramet.agent.adopted.mark import AdoptedFunction
from ramet.agent.composition.steps import Composition, nesting_depth
from ramet.agent.definition import Agent, as_agent
from ramet.core.errors import InvalidValue
from ramet.core.limits import Limits, SpawnLimits
from ramet.core.policy.permissions import NO_PERMISSIONS
from ramet.host.code_replay.recorded_runs import RecordedRun
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session, definition_only
from ramet.host.trees.factory import TreeOptions
from ramet.models.scripted.model import ScriptedModel
from ramet.spawn.birth.record import request_of
from ramet.tools.agents.agents import spawning_tools
from ramet.tools.spawn_request import SpawnRequest

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

ACCEPTED: Final = (
    "an Agent, a list of agents whose first one is the root, a Session that has not begun, or a function: the one that "
    "the root was, or one that returns any of these, and may take a model for it"
)
#: Stands for the model of a root that names none: no model is asked.
_MODEL: Final = "recorded"
_FOLDER_LINE: Final = "You work in the folder {folder}."


class RootCode(NamedTuple):
    """A root as code defines it: everything that its tree begins with."""

    agent: Agent
    options: TreeOptions
    tools: Sequence[BaseTool]
    limits: Limits
    request: SpawnRequest
    cwd: pathlib.Path


async def root_code(code: object, record: RecordedRun, runtime: AgentRuntime) -> RootCode:
    """Return the root of code. Raises InvalidValue for any other object, and for a root that cannot be replayed."""
    function = record.recipe.get("function")
    if "external" in record.recipe:
        raise InvalidValue("journal", record.spawn.agent, "a root that is a model or a function, no external program")
    if "mcp" in record.recipe:
        raise InvalidValue("journal", record.spawn.agent, "a root without MCP servers: none is started here")
    if function is None and callable(code) and not isinstance(code, Agent):
        code = await _definition_of(code)
    if isinstance(code, Session):
        return await _of_session(code, record)
    agents = [as_agent(each) for each in code] if isinstance(code, list | tuple) else [_as_root(code)]
    if not agents:
        raise InvalidValue("code", code, ACCEPTED)
    return _of_agents(agents, record, runtime)


def _as_root(code: object) -> Agent:
    if isinstance(code, Agent | Mapping) or callable(code):
        return as_agent(code)
    raise InvalidValue("code", code, ACCEPTED)


async def _definition_of(function: Callable[..., Any]) -> object:
    """Return what a function defines. Raises InvalidValue for another function, and for an error of it."""
    name = getattr(function, "__name__", repr(function))
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise InvalidValue("code", name, ACCEPTED) from None
    required = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    if len(required) > 1 or inspect.iscoroutinefunction(function):
        raise InvalidValue("code", name, ACCEPTED)
    token = definition_only.set(True)
    try:
        made = function(ScriptedModel([])) if required else function()
    except Exception as error:
        raise InvalidValue("code", name, f"{ACCEPTED} ({type(error).__name__}: {error})") from error
    finally:
        definition_only.reset(token)
    if not isinstance(made, Session | Agent | list | tuple):
        if inspect.iscoroutine(made):
            made.close()
        raise InvalidValue("code", f"{name}() -> {type(made).__name__}", ACCEPTED)
    return made


async def _of_session(session: Session[Any], record: RecordedRun) -> RootCode:
    """Return the root of a session, which is closed."""
    beginning = session._beginning
    if beginning is None:
        raise InvalidValue("code", "a resumed session", ACCEPTED)
    await session.close()
    return RootCode(
        agent=_checked(beginning.agent, record),
        options=dataclasses.replace(
            beginning.plan,
            definitions=dict(beginning.plan.definitions),
            hooks=(),
            session=None,
            children=None,
            sync_tools="thread",
            gate=None,
            permissions=NO_PERMISSIONS,
            conversation=False,
            other_sessions={},
        ),
        tools=beginning.tools,
        limits=beginning.limits,
        request=dataclasses.replace(beginning.request, policy=None, import_dir=None),
        cwd=beginning.plan.cwd or _folder(record),
    )


def _of_agents(agents: Sequence[Agent], record: RecordedRun, runtime: AgentRuntime) -> RootCode:
    """Return the root of definitions, in the recorded folder, if its instructions name that."""
    root, cwd = _checked(agents[0], record), _folder(record)
    line = _FOLDER_LINE.format(folder=record.spawn.birth.get("cwd", ""))
    is_in_folder = any(line in text for text in record.spawn.birth.get("system", ())) and cwd.is_dir()
    project = runtime.open_project(cwd if is_in_folder else None, agents[1:])
    return RootCode(
        agent=root,
        options=TreeOptions(
            definitions=dict(project),
            cwd=cwd if is_in_folder else None,
            spawn_limits=SpawnLimits(depth=SpawnLimits().depth + nesting_depth(root.function)),
            permissions=NO_PERMISSIONS,
        ),
        tools=spawning_tools(),
        limits=root.limits,
        request=_request(root, record),
        cwd=cwd,
    )


def _checked(agent: Agent, record: RecordedRun) -> Agent:
    """Return the definition of a root, with a model. Raises InvalidValue for a root of another kind than on record."""
    is_function = agent.function is not None
    if agent.external is not None or isinstance(agent.function, AdoptedFunction):
        raise InvalidValue("code", agent.name, "a model, a function or a composition: its requests are on record")
    if is_function != ("function" in record.recipe):
        recorded = "a function" if "function" in record.recipe else "an agent with a model"
        raise InvalidValue("code", agent.name, f"{recorded}, as the root of the journal")
    if is_function and not isinstance(agent.function, Composition) and "grant" in record.spawn.birth:
        raise InvalidValue("journal", agent.name, "a root that did not work in a sandbox: a function would run here")
    return agent if is_function or agent.model is not None else agent.replace(model=_MODEL)


def _request(agent: Agent, record: RecordedRun) -> SpawnRequest:
    """Return the request for a root: a function gets the recorded arguments. Raises DefinitionMissing."""
    spawn = record.spawn
    if agent.function is None:
        return SpawnRequest(prompt=spawn.prompt, name=spawn.name)
    request = request_of(spawn.birth, agent.function, prompt=spawn.prompt, description="", name=spawn.name)
    return dataclasses.replace(request, begins_at="", branch=False, fork_place="", state_owner="")


def _folder(record: RecordedRun) -> pathlib.Path:
    return pathlib.Path(record.spawn.birth.get("cwd", "."))
