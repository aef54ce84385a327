"""What an agent is, as data: checked when written down, so that a bad one never starts."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ramet.agent import hook_config
from ramet.agent.output import OutputContract
from ramet.core.budget import Limits
from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

Scope = Literal["managed", "call", "project", "user", "plugin", "builtin"]
#: Who wins when two definitions share a name: the first.
PRECEDENCE: tuple[Scope, ...] = ("managed", "call", "project", "user", "plugin", "builtin")
MAX_TEXT = 256 * 1024
ISOLATIONS = ("inline", "worktree")
MEMORY_SCOPES = ("user", "project", "local")


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A definition: who it is, what it may use, how long it may go on.

    `tools=None` inherits the parent's, an empty tuple means none; entries are tools, or names, or `Agent(a, b)` to say
    which types it may spawn. `model=None` inherits. `function` makes it a plain (async) function instead of a model.
    """

    name: str
    description: str = ""
    instructions: str = ""
    model: str | BaseChatModel | None = None
    tools: Sequence[str | BaseTool] | None = None
    disallowed_tools: Sequence[str] = ()
    read_only: bool = False  #: keeps only tools that say they read: a file's `permissionMode: plan`
    max_turns: int | None = None
    limits: Limits = field(default_factory=Limits)
    output: type[Any] | Mapping[str, Any] | None = None  #: pydantic model, dataclass or JSON schema of the final answer
    skills: Sequence[str] = ()
    memory: Literal["user", "project", "local"] | None = None
    hooks: Mapping[str, Any] | None = None
    background: bool = False
    isolation: str | None = None
    initial_prompt: str = ""
    function: Callable[..., Any] | None = None
    scope: Scope = "call"
    source: pathlib.Path | None = None

    def __post_init__(self) -> None:
        checked_name("name", self.name)
        for each in ("description", "instructions", "initial_prompt"):
            text = getattr(self, each)
            if not isinstance(text, str) or len(text) > MAX_TEXT:
                raise InvalidValue(each, text, f"text of at most {MAX_TEXT} characters")
        for each in ("tools", "disallowed_tools", "skills"):
            entries = getattr(self, each)
            if entries is not None:
                if isinstance(entries, str):
                    raise InvalidValue(each, entries, "a list of names")
                object.__setattr__(self, each, tuple(entries))
        if self.model == "inherit":  # as agent files spell it
            object.__setattr__(self, "model", None)
        if self.max_turns is not None and (
            not isinstance(self.max_turns, int) or isinstance(self.max_turns, bool) or self.max_turns < 1
        ):
            raise InvalidValue("max_turns", self.max_turns, "a whole number from 1, or None")
        if not isinstance(self.limits, Limits):
            raise InvalidValue("limits", self.limits, "ramet.Limits")
        if self.isolation is not None and self.isolation not in ISOLATIONS:
            raise InvalidValue("isolation", self.isolation, " or ".join(ISOLATIONS))
        if self.memory is not None and self.memory not in MEMORY_SCOPES:
            raise InvalidValue("memory", self.memory, " or ".join(MEMORY_SCOPES))
        if self.output is not None:
            OutputContract(self.output)
        if self.hooks is not None:
            hook_config.read(self.hooks)
        if self.function is not None and not callable(self.function):
            raise InvalidValue("function", self.function, "a callable")
        if self.scope not in PRECEDENCE:
            raise InvalidValue("scope", self.scope, " or ".join(PRECEDENCE))

    def replace(self, **changes: Any) -> Agent:
        """The same agent with some fields changed, checked again."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, scope: Scope = "call") -> Agent:
        """Read the dict that deepagents and langchain users write: `system_prompt`, `subagents`-style keys included.

        Raises InvalidValue for a key that means nothing here, naming it.
        """
        renamed = {"system_prompt": "instructions", "prompt": "instructions", "response_format": "output"}
        known = {each.name for each in dataclasses.fields(cls)}
        fields: dict[str, Any] = {"scope": scope}
        for key, value in data.items():
            name = renamed.get(key, key)
            if name not in known:
                raise InvalidValue("agent key", key, ", ".join(sorted(known | set(renamed))))
            fields[name] = value
        if "name" not in fields:
            raise InvalidValue("name", None, "a name")
        return cls(**fields)
