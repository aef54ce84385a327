"""The definition of an agent, as data: checked when it is created, so that an invalid agent never starts."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from ramet.agent.capabilities.declarations import DeclaresCapabilities
from ramet.agent.capabilities.task import Task
from ramet.agent.external.external import External, ExternalFunction, as_external
from ramet.agent.hooks import config
from ramet.agent.output import OutputContract
from ramet.agent.typed.schema import Types
from ramet.core.agent_ref import AgentRef
from ramet.core.arguments import KnownFields, check_bool, check_instance
from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name, safe_name
from ramet.core.limits import Limits
from ramet.core.liveness.watch_settings import NO_WATCH, Watch
from ramet.core.mcp.server_entry import McpServer, as_servers
from ramet.core.outcome import T
from ramet.core.policy.capabilities import Capability
from ramet.core.policy.permissions import NO_PERMISSIONS, Permissions
from ramet.core.policy.policy import Policy
from ramet.models.effort import EFFORTS, Effort

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool
Scope = Literal["managed", "call", "project", "user", "plugin", "builtin"]
#: Precedence of definitions with the same name: the first wins.
PRECEDENCE: tuple[Scope, ...] = ("managed", "call", "project", "user", "plugin", "builtin")
MAX_TEXT = 256 * 1024
ISOLATIONS = ("inline", "worktree")
MEMORY_SCOPES = ("user", "project", "local")


#: What only agents have whose loop is ramet's own.
_OF_OWN_LOOP = (
    *("tools", "disallowed_tools", "read_only", "effort", "output", "skills", "memory", "omit_instructions", "setup"),
    *("capabilities", "mcp"),
)

#: What would let a coordinator work by itself.
_NOT_OF_COORDINATORS = ("read_only", "skills", "memory", "mcp", "setup", "capabilities", "function", "external")

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Agent(DeclaresCapabilities, Generic[T], metaclass=KnownFields):
    """A definition: an agent's identity, what it may use, and its limits.

    `tools=None` inherits the parent's, an empty tuple means none. Entries are tools, functions with a docstring, names
    of the parent's tools, or `Agent(a, b)` to list the types it may spawn. `model=None` inherits. `function` makes it a
    plain (async) function instead of a model. Raises InvalidValue, naming the field.
    """

    name: str  #: what others choose it by; part of the paths of its runs
    description: str = ""  #: what it is for, as models that may start it read it
    primer: str = ""  #: precedes the instructions; describes its role, in an agent that another agent created
    instructions: str = ""  #: its system prompt
    model: str | BaseChatModel | None = None  #: a string such as "anthropic:claude-sonnet-5-5", or a chat model
    effort: Effort | None = None  #: of its model's reasoning; None: as its parent's, a root's the provider's default
    tools: Sequence[str | BaseTool | Callable[..., Any]] | None = None
    disallowed_tools: Sequence[str] = ()  #: names that are left out of `tools`, or of the parent's
    permissions: Permissions = NO_PERMISSIONS  #: rules for its calls; those that narrow hold for all below it, too
    read_only: bool = False  #: keeps only tools that declare to be read-only: a file's `permissionMode: plan`
    max_turns: int | None = None  #: model replies in one turn; None: as its parent's, a root's 100
    limits: Limits = field(default_factory=Limits)  #: of each of its runs with all below
    watch: Watch = NO_WATCH  #: what is not set is inherited
    budget_note: bool | None = None  #: its model reads what is left of the limits; None: as its parent's, a root's not
    output: type[T] | Mapping[str, Any] | None = None  #: pydantic model, dataclass or JSON schema of the final answer
    skills: Sequence[str] = ()  #: names of the skills that it may load, or "*"
    memory: Literal["user", "project", "local"] | None = None  #: where it keeps notes; None: nowhere
    omit_instructions: bool = False  #: it is not told the AGENTS.md or CLAUDE.md of its folder
    #: servers of the Model Context Protocol, as entries of `.mcp.json` with their names; they run in its sandbox
    mcp: Sequence[McpServer | Mapping[str, Any]] = ()
    tool_search: bool | Literal["auto"] = "auto"  #: their tools are found with ToolSearch; "auto": if there are many
    hooks: Mapping[str, Any] | None = None  #: of its runs, by hook event
    background: bool = False  #: its caller does not wait for it, and is told of its end by a notice
    isolation: str | None = None  #: "worktree": a copy of the repository, in a sandbox a clone; or "inline"
    policy: Policy | None = None  #: with a policy, it runs in a sandbox
    initial_prompt: str = ""  #: precedes the prompt of a run that begins without a conversation
    function: Callable[..., Any] | None = None  #: instead of a model: plain or async, or a composition
    #: a program of another maker, in a sandbox: "claude-code", "codex", "gemini", "opencode", or ramet.External
    external: str | External | None = None
    cache_ttl_seconds: float | None = None  #: how long a result is reused for calls with the same inputs
    capabilities: tuple[Capability, ...] = ()  #: what its code may use, by name: `.module`, `.fn`, `.cls`, `.tool`
    #: modules whose sources are sent into the sandbox
    source_modules: Sequence[str] = field(default=(), compare=False, repr=False)
    setup: str = ""  #: Python that runs in its sandbox before a turn, and is no turn itself
    coordinator: bool = False  #: it only leads other agents: its other tools are for them
    peers: bool = False  #: its children know each other, and agree on plans and shutdowns with it
    sibling_list: bool = False  #: its brief ends with a list of the other children of its parent, as it starts
    concludes: bool = False  #: it has task_success, task_fail and task_clarify, like an agent that performs a task
    scope: Scope = "call"  #: where the definition is from; decides between two of one name
    source: pathlib.Path | None = None  #: its file; None if it was defined in code
    tasks: Mapping[str, Task] = field(default_factory=dict, compare=False, repr=False)  #: declared with `@agent.task`
    types: Types = field(default_factory=dict, compare=False, repr=False)  #: classes of its tasks, as data
    ref: AgentRef | None = field(default=None, compare=False)  #: its handle, if another agent created it

    def __post_init__(self) -> None:
        checked_name("name", self.name)
        for each in ("description", "primer", "instructions", "initial_prompt", "setup"):
            text = getattr(self, each)
            if not isinstance(text, str) or len(text) > MAX_TEXT:
                raise InvalidValue(each, text, f"text of at most {MAX_TEXT} characters")
        for each in ("tools", "disallowed_tools", "skills", "source_modules"):
            entries = getattr(self, each)
            if entries is not None:
                if isinstance(entries, str) or not isinstance(entries, Iterable):
                    raise InvalidValue(each, entries, "a list of names")
                object.__setattr__(self, each, tuple(entries))
        if not all(isinstance(each, str) for each in self.source_modules):
            raise InvalidValue("source_modules", self.source_modules, "a list of names")
        if self.tools is not None and not all(isinstance(each, str) for each in self.tools):
            object.__setattr__(self, "tools", _as_tools(self.tools))
        if self.model == "inherit":  # the form in agent files
            object.__setattr__(self, "model", None)
        check_model("model", self.model)
        if self.effort is not None and self.effort not in EFFORTS:
            raise InvalidValue("effort", self.effort, f"{', '.join(EFFORTS)}, or None")
        for each in (
            "read_only",
            "background",
            "concludes",
            "coordinator",
            "peers",
            "sibling_list",
            "omit_instructions",
        ):
            check_bool(each, getattr(self, each))
        if self.budget_note is not None:
            check_bool("budget_note", self.budget_note)
        if self.max_turns is not None and (
            not isinstance(self.max_turns, int) or isinstance(self.max_turns, bool) or self.max_turns < 1
        ):
            raise InvalidValue("max_turns", self.max_turns, "a whole number from 1, or None")
        if not isinstance(self.limits, Limits):
            raise InvalidValue("limits", self.limits, "ramet.Limits")
        check_instance("watch", self.watch, Watch, "ramet.Watch")
        check_instance("permissions", self.permissions, Permissions, "ramet.core.policy.permissions.Permissions")
        if self.isolation is not None and self.isolation not in ISOLATIONS:
            raise InvalidValue("isolation", self.isolation, " or ".join(ISOLATIONS))
        if self.policy is not None and not isinstance(self.policy, Policy):
            raise InvalidValue("policy", self.policy, "ramet.Policy")
        if self.memory is not None and self.memory not in MEMORY_SCOPES:
            raise InvalidValue("memory", self.memory, " or ".join(MEMORY_SCOPES))
        if self.output is not None:
            OutputContract(self.output)
        if self.hooks is not None:
            config.read(self.hooks)
        if self.mcp != ():
            object.__setattr__(self, "mcp", as_servers(self.mcp))
        if self.mcp and self.function is not None and not isinstance(self.function, ExternalFunction):
            raise InvalidValue("mcp", self.function, "none for an agent that is a function: a model calls their tools")
        if self.tool_search != "auto":
            check_instance("tool_search", self.tool_search, bool, "True, False or 'auto'")
        if self.external is not None:
            self._set_external(as_external(self.external))
        if self.function is not None and not callable(self.function):
            raise InvalidValue("function", self.function, "a callable")
        if self.peers and self.function is not None:
            raise InvalidValue(
                "peers", self.peers, "False for an agent without a model of its own: it answers no plans"
            )
        if self.coordinator:
            self._check_coordinator()
        ttl: object = self.cache_ttl_seconds
        if ttl is not None and (isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl < math.inf):
            raise InvalidValue("cache_ttl_seconds", ttl, "seconds above 0, or None")
        if self.scope not in PRECEDENCE:
            raise InvalidValue("scope", self.scope, " or ".join(PRECEDENCE))

    @property
    def mcp_servers(self) -> tuple[McpServer, ...]:
        """Return the servers of the Model Context Protocol that it uses."""
        return as_servers(self.mcp) if self.mcp else ()

    @property
    def takes_prompt(self) -> bool:
        """True if prompts are its input: it has a model, or is a program of another maker. A function has arguments."""
        return self.function is None or self.external is not None

    def _check_coordinator(self) -> None:
        """Raise InvalidValue for a setting that would let a coordinator do more than lead other agents."""
        for each in _NOT_OF_COORDINATORS:
            if getattr(self, each):
                raise InvalidValue(each, getattr(self, each), "nothing: a coordinator only leads other agents")

    def _set_external(self, external: External) -> None:
        if self.function is not None and not isinstance(self.function, ExternalFunction):
            raise InvalidValue("external", external.preset or external.command[0], "None for an agent with a function")
        if self.model is not None and not isinstance(self.model, str):
            raise InvalidValue("model", self.model, "the name of a model, as 'provider:model', for an external agent")
        for each in _OF_OWN_LOOP:
            if getattr(self, each):
                accepted = "nothing: an external agent is a program with a loop and settings of its own"
                raise InvalidValue(each, getattr(self, each), accepted)
        object.__setattr__(self, "external", external)
        object.__setattr__(self, "function", ExternalFunction(external))

    def replace(self, **changes: Any) -> Agent[T]:
        """Return the agent with some fields changed, validated again. Raises InvalidValue."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, scope: Scope = "call") -> Agent:
        """Create an agent from the dict of deepagents and langchain, including keys such as `system_prompt`.

        Raises InvalidValue, with the key, for an unknown key.
        """
        aliases = {"system_prompt": "instructions", "prompt": "instructions", "response_format": "output"}
        known_names = {each.name for each in dataclasses.fields(cls)} - {"tasks", "types", "ref", "source_modules"}
        fields: dict[str, Any] = {"scope": scope}
        for key, value in data.items():
            name = aliases.get(key, key)
            if name not in known_names:
                raise InvalidValue("agent key", key, ", ".join(sorted(known_names | set(aliases))))
            fields[name] = value
        if "name" not in fields:
            raise InvalidValue("name", None, "a name")
        return cls(**fields)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the agent's function as plain code. Raises InvalidValue if the agent has no function."""
        if self.function is None:
            raise InvalidValue("agent", self.name, "an agent that is a function; a runtime or session runs any other")
        return self.function(*args, **kwargs)

    # ---- changed copies of the agent: each method returns a new one, validated again

    def with_name(self, name: str) -> Agent[T]:
        """Return the agent with another name."""
        return self.replace(name=name)

    def with_description(self, description: str) -> Agent[T]:
        """Return the agent with another description, which helps others to choose among agents."""
        return self.replace(description=description)

    def with_instructions(self, instructions: str) -> Agent[T]:
        """Return the agent with other instructions."""
        return self.replace(instructions=instructions)

    def with_model(self, model: str | BaseChatModel | None) -> Agent[T]:
        """Return the agent with another model; None inherits."""
        return self.replace(model=model)

    def with_tools(self, *tools: str | BaseTool) -> Agent[T]:
        """Return the agent with exactly these tools; no argument means no tools."""
        return self.replace(tools=tools)

    def with_output(self, output: type[R] | Mapping[str, Any] | None) -> Agent[R]:
        """Return the agent with another contract of its final answer."""
        return cast("Agent[R]", self.replace(output=output))

    def with_policy(self, policy: Policy | None = None, **fields: Any) -> Agent[T]:
        """Return the agent with another policy; fields without a policy change the existing one."""
        return self.replace(policy=changed_policy(self.policy if policy is None and fields else policy, **fields))

    def with_resources(self, *, cpu: float | None = None, **fields: Any) -> Agent[T]:
        """Return the agent with these resources in its policy: `cpu`, `memory_mb`, `pids`, sizes."""
        return self.replace(policy=changed_policy(self.policy, **resource_fields(cpu, fields)))

    def with_timeout(self, seconds: float | None) -> Agent[T]:
        """Return the agent with this time limit for a whole run; None sets no own limit."""
        return self.replace(limits=dataclasses.replace(self.limits, seconds=seconds))

    def with_retry(self, count: int, *, delay_seconds: float | None = None) -> Agent[T]:
        """Return the agent with this number of retries after a failed attempt, each in a clean sandbox.

        `delay_seconds` between attempts is 1.0 if it is absent.
        """
        fields = {"retry_count": count} | ({} if delay_seconds is None else {"retry_delay_seconds": delay_seconds})
        return self.replace(policy=changed_policy(self.policy, **fields))

    def with_cache(self, ttl_seconds: float | None) -> Agent[T]:
        """Return the agent with results reused this long for calls with the same inputs; None disables the cache."""
        return self.replace(cache_ttl_seconds=ttl_seconds)

    def with_limits(self, limits: Limits | None = None, **fields: Any) -> Agent[T]:
        """Return the agent with other limits; fields without limits change the existing ones."""
        if limits is None:
            limits = self.limits if fields else Limits()
        if not isinstance(limits, Limits):
            raise InvalidValue("limits", limits, "ramet.Limits")
        return self.replace(limits=dataclasses.replace(limits, **fields))


#: Fields of `resources` and `with_resources`, as a policy spells them.
RESOURCE_FIELDS = ("cpu_cores", "memory_mb", "pids", "tmpfs_size_mb", "workspace_size_mb", "max_output_bytes")


def check_model(field: str, model: object) -> None:
    """Raise InvalidValue if the value is no model; a chain around one, for example, cannot get tools or be charged."""
    if model is None or isinstance(model, str):
        return
    from langchain_core.language_models import BaseChatModel  # A caller with such an object has imported the module.

    if not isinstance(model, BaseChatModel):
        accepted = "a LangChain chat model itself (no chain or binding around it), or a name as 'provider:model'"
        raise InvalidValue(field, model, accepted)


def _as_tools(entries: Sequence[Any]) -> tuple[str | BaseTool, ...]:
    """Return the entries, with functions turned into tools. Raises InvalidValue if an entry cannot be a tool."""
    from ramet.tools.functions import as_tool  # Imported late: it is slow, and most definitions list names.

    return tuple(
        entry if isinstance(entry, str) else as_tool(entry, f"tools[{index}]") for index, entry in enumerate(entries)
    )


def resource_fields(cpu: float | None, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return resource fields of a policy. Raises InvalidValue for a field that is no resource."""
    for name in fields:
        if name not in RESOURCE_FIELDS:
            raise InvalidValue("resources", name, f"cpu, {', '.join(RESOURCE_FIELDS)}")
    return dict(fields) if cpu is None else {**fields, "cpu_cores": cpu}


def changed_policy(policy: Policy | None, **fields: Any) -> Policy | None:
    """Return a policy with some fields changed, validated as a whole. Raises InvalidValue for an unknown field."""
    if not fields:
        return policy
    for name in fields:
        if name not in Policy.__struct_fields__:
            raise InvalidValue(f"policy.{name}", name, f"one of {', '.join(Policy.__struct_fields__)}")
    current = {} if policy is None else {name: getattr(policy, name) for name in Policy.__struct_fields__}
    return Policy(**current | fields)


def as_agent(value: Any) -> Agent:
    """Return a definition from a caller's value: an Agent, a dict of its fields, or a plain function."""
    if isinstance(value, Agent):
        return value
    if isinstance(value, Mapping):
        return Agent.from_dict(value)
    if callable(value):
        return Agent(name=safe_name(getattr(value, "__name__", "function"), "function"), function=value)
    raise InvalidValue("agent", value, "ramet.Agent, a dict of its fields, or a function")
