"""Declare the capabilities and tasks of an agent, with `.module`, `.fn`, `.cls`, `.tool` and `@agent.task`.

Objects are stored by name only: a capability is a symbolic reference that another process can resolve, or refuse. An
agent with declarations can be found by its name in this process, as the root of handles.
"""

from __future__ import annotations

import inspect
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from ramet.agent.capabilities.task import Task
from ramet.agent.capabilities.task_runner import current_runner
from ramet.agent.typed.schema import Types
from ramet.core.agent_ref import AgentRef
from ramet.core.errors import AgentNotResolved, InvalidValue
from ramet.core.limits import Limits
from ramet.core.policy.capabilities import Capability, Kind, Visibility
from ramet.core.recipe import Recipe

if TYPE_CHECKING:
    from types import ModuleType

    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
T = TypeVar("T", bound="str | BaseTool")

#: `ramet.Agent` itself: code with this class may create agents.
AGENT_CLASS = "Agent"


class DeclaresCapabilities:
    """The part of `ramet.Agent` that is declared after the agent was created."""

    if TYPE_CHECKING:
        name: str
        primer: str
        instructions: str
        model: str | BaseChatModel | None
        tools: Sequence[str | BaseTool | Callable[..., Any]] | None
        limits: Limits
        setup: str
        capabilities: tuple[Capability, ...]
        source_modules: Sequence[str]
        tasks: Mapping[str, Task]
        types: Types
        ref: AgentRef | None

    @property
    def tool_entries(self) -> tuple[str | BaseTool, ...] | None:
        """Return `tools`, in which every function has been converted to a tool."""
        return cast("tuple[str | BaseTool, ...] | None", self.tools)

    def module(
        self,
        module: ModuleType | str,
        *,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        visibility: Visibility = "medium",
    ) -> Self:
        """Let the agent's code use a module, or its names that match `include` and not `exclude`. Raises InvalidValue.

        The source of a module that is not installed is sent into the sandbox: see `ramet.agent.source_modules`.
        """
        add_capability(
            self,
            capability_of("module", module, visibility=visibility, include=include, exclude=exclude),
        )
        return self

    def fn(self, function: F, *, visibility: Visibility = "medium") -> F:
        """Let the agent's code call a function of an importable module; usable as a decorator. Raises InvalidValue.

        A task of another agent is such a function: `@lead.fn` above `@specialist.task`.
        """
        add_capability(self, capability_of("function", function, visibility=visibility))
        return function

    def cls(
        self,
        kind: C,
        *,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        visibility: Visibility = "medium",
    ) -> C:
        """Let the agent's code use a class; `Agent` itself lets it create agents.

        A decorator too. Raises InvalidValue.
        """
        add_capability(self, capability_of("class", kind, visibility=visibility, include=include, exclude=exclude))
        return kind

    def tool(self, tool: T, *, visibility: Visibility = "medium") -> T:
        """Let the agent use a tool, an object or a name. Raises InvalidValue if it is neither."""
        add_capability(self, capability_of("tool", tool, visibility=visibility))
        object.__setattr__(self, "tools", (*(self.tool_entries or ()), tool))
        return tool

    def task(self, function: Callable[..., Any]) -> Task:
        """Declare a task: docstring and signature of a function with an empty body.

        Raises InvalidValue for an invalid task, or a repeated name.
        """
        agent_types: Types = dict(self.types)
        task = Task.from_function(self, function, agent_types)
        if task.name in self.tasks:
            raise InvalidValue(f"task {task.name}", task.name, "a name that no other task of this agent has")
        object.__setattr__(self, "tasks", {**self.tasks, task.name: task})
        object.__setattr__(self, "types", agent_types)
        _declared.add(self)
        return task

    def recipe(self) -> Recipe:
        """Return the agent as data, with its content hash. Raises InvalidValue if a part cannot be recorded."""
        limits = {name: value for name, value in self.limits.as_data().items() if name != "at_limit"}
        tools = [each if isinstance(each, str) else each.name for each in self.tool_entries or ()]
        listed_tools = {each.name for each in self.capabilities if each.type == "tool"}
        return Recipe(
            name=self.name,
            primer="\n\n".join(each for each in (self.primer, self.instructions) if each),
            model=self.model if isinstance(self.model, str) else None,
            capabilities=(
                *self.capabilities,
                *(Capability("tool", name) for name in tools if name not in listed_tools),
            ),
            tasks={name: task.definition for name, task in self.tasks.items()},
            types=self.types,
            limits=limits,
            setup=self.setup,
        )

    def __enter__(self) -> Self:
        """Begin declaring capabilities and tasks; at the end, an agent that creates another one records it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            object.__setattr__(self, "ref", current_runner().create(self) or self.ref)


def capability_of(
    kind: Kind,
    obj: Any,
    *,
    visibility: Visibility = "medium",
    include: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
) -> Capability:
    """Return a capability with the name of an object.

    Raises InvalidValue, with the reason, if it has no importable name.
    """
    if isinstance(include, str) or isinstance(exclude, str):
        raise InvalidValue("include", include, "a list of names or patterns")
    return Capability(
        kind,
        obj if isinstance(obj, str) else _name(kind, obj),
        visibility,
        None if include is None else tuple(include),
        tuple(exclude),
    )


def _name(kind: Kind, obj: Any) -> str:
    if kind == "module":
        if not isinstance(obj, types.ModuleType):
            raise InvalidValue("module", obj, "a module, or its name")
        return obj.__name__
    if kind == "tool":
        name = getattr(obj, "name", None)
        if not isinstance(name, str):
            raise InvalidValue("tool", obj, "a langchain tool, or its name")
        return name
    if (getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)) == (
        "ramet.agent.definition",
        "Agent",
    ):
        return AGENT_CLASS
    if not (inspect.isclass(obj) if kind == "class" else callable(obj)):
        raise InvalidValue(kind, obj, f"a {kind}, or its name as module:qualname")
    module, name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    value: Any = sys.modules.get(module or "")
    if _is_being_bound(value, name):
        return f"{module}:{name}"
    for step in (name or "?").split("."):
        value = getattr(value, step, None)
    if value is not obj or module == "__main__":
        problem = (
            "in a script, which has another name in other processes"
            if module == "__main__"
            else "not found by its name"
        )
        raise InvalidValue(kind, obj, f"a {kind} at the top level of a module that can be imported; it is {problem}")
    return f"{module}:{name}"


def _is_being_bound(module: Any, name: object) -> bool:
    """Return whether a decorator runs at the top level of a module under import: the name is bound after it."""
    is_initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return bool(is_initializing) and isinstance(name, str) and name.isidentifier() and not hasattr(module, name)


def add_capability(agent: DeclaresCapabilities, capability: Capability) -> None:
    """Add a capability to an agent; an existing one with the same key is replaced."""
    others = [each for each in agent.capabilities if each.key != capability.key]
    object.__setattr__(agent, "capabilities", (*others, capability))
    if capability.module:
        modules = dict.fromkeys((*agent.source_modules, capability.module))
        object.__setattr__(agent, "source_modules", tuple(modules))
    _declared.add(agent)


# ---- the agents that code declares, by name


class _Registry:
    """Agents by name: each as long as it exists, and the newest of each name that is no created agent."""

    def __init__(self) -> None:
        self.references: dict[str, list[weakref.ref[DeclaresCapabilities]]] = {}
        self.newest: dict[str, DeclaresCapabilities] = {}

    def add(self, agent: DeclaresCapabilities) -> None:
        """Add an agent as the last one of its name."""
        if agent.ref is None:
            self.newest[agent.name] = agent
        others = [weakref.ref(each) for each in self.living(agent.name) if each is not agent]
        self.references[agent.name] = [*others, weakref.ref(agent)]

    def living(self, name: str) -> list[DeclaresCapabilities]:
        """Return the agents of a name that still exist, oldest first."""
        return [agent for each in self.references.get(name, ()) if (agent := each()) is not None]


_declared = _Registry()
_undeclared = _Registry()  #: agents without declarations: created with capabilities, or copied for runs


def register_undeclared(agent: DeclaresCapabilities) -> None:
    """Make an agent without declarations, which creates others, available to handles.

    A declared agent takes precedence. Agents of a server's clients and of guests that create none and have no tasks are
    not registered.
    """
    creates_agents = any(each.type == "class" and each.name == AGENT_CLASS for each in agent.capabilities)
    is_declared = any(each is agent for each in _declared.living(agent.name))
    if agent.ref is None and (creates_agents or agent.tasks) and not is_declared:
        _undeclared.add(agent)


def find_registered(name: str) -> DeclaresCapabilities | None:
    """Return the agent of this name that code of this process declared last."""
    return _declared.newest.get(name) or _undeclared.newest.get(name)


def handle_of(agent: DeclaresCapabilities) -> AgentRef:
    """Return an agent's handle; an agent declared in code is its own root. Raises InvalidValue without a recipe."""
    if agent.ref is not None:
        return agent.ref
    version = agent.recipe().version
    return AgentRef(agent.name, version, (), version)


def root_agent(name: str, version: str, handle: str) -> DeclaresCapabilities:
    """Return the agent of this name declared in this process, with this version or identity.

    Of several with one identity, the newest declared counts: its capabilities are the current ones of the agent at the
    top. Raises AgentNotResolved if none matches; never returns another agent.
    """
    live_agents = [each for each in (*_undeclared.living(name), *_declared.living(name)) if each.ref is None]
    for agent in reversed(live_agents):
        recipe = agent.recipe()
        if version == recipe.version or version == recipe.identity:
            return agent
    reason = (
        f"is declared here in another version than {version[:16]}…; to use this one, ask by name, without a version, "
        "or by the handle that AgentRuntime.dynamic.rebind returns"
        if live_agents
        else "is not declared in this process"
    )
    raise AgentNotResolved(handle, "root agent", name, reason)
