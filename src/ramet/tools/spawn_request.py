"""The request for a spawn, and what a caller gets."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Literal, NamedTuple, Protocol

from ramet.core.arguments import KnownFields, check_callable, check_instance, check_text
from ramet.core.errors import InvalidValue
from ramet.core.ids import CallId, Path, RunId, checked_name
from ramet.core.limits import NO_LIMITS, Limits
from ramet.core.liveness.watch_settings import NO_WATCH, Watch
from ramet.core.outcome import Result
from ramet.core.policy.policy import Policy
from ramet.tools.run_info import StopReceipt

Mode = Literal["fresh", "fork"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SpawnRequest(metaclass=KnownFields):
    """The request for a spawn. Nothing in it is granted yet. Raises InvalidValue, naming the field."""

    prompt: str = ""  #: the task, for an agent that has a model
    name: str | None = None  #: by which others address it; None: a number; a name that is taken gets "-2"
    description: str = ""  #: for people who watch
    subagent_type: str | None = None  #: name of a definition; None with no `agent` means fork, unless configured
    agent: Any = None  #: a definition (`ramet.Agent`) or a function, for callers in code
    args: tuple[Any, ...] = ()  #: for functions
    kwargs: Mapping[str, Any] = field(default_factory=dict)  #: likewise
    #: For functions, after `args`: data that is read at each attempt and not recorded. The resuming process supplies it
    #: again.
    late_args: Callable[[], tuple[Any, ...]] | None = None
    mode: Mode | None = None  #: with or without the conversation of the parent; None: as the type says
    model: str | None = None  #: a string; None uses the definition's value
    background: bool | None = None  #: None uses the definition's value
    detached: bool = False  #: it outlives its parent, and needs limits of its own
    isolation: str | None = None  #: "worktree" or "inline"; None uses the definition's value
    cwd: str | None = None  #: a folder below the parent's; None: that of the parent
    branch: bool = False  #: its state is a branch of its parent's, which is unchanged until it merges
    fork_of: str = ""  #: a recorded run of any tree, whose messages and, on a branch, state it begins with
    fork_at: int | None = None  #: as of the event of this number in that run's tree; None: the newest event
    begins_at: str = ""  #: the commit at which the branch begins; set by the host
    fork_place: str = ""  #: the namespace of the state of `fork_of`; set by the host
    history: tuple[Any, ...] = ()  #: the messages of `fork_of`; set by the host
    attachments: tuple[dict[str, Any], ...] = ()  #: blocks of files that come with the prompt; set by the host
    limits: Limits = NO_LIMITS  #: a slice of the parent's; without any, those of the definition
    watch: Watch = NO_WATCH  #: what is not set is inherited
    policy: Policy | None = None  #: with a policy, it runs in a sandbox; a child of a sandboxed run always does
    returns: Any = None  #: type of a sandboxed function's result; None uses its annotation
    on_output: Callable[[str, str], None] | None = None  #: called with "stdout" or "stderr", and text, as it arrives
    #: Set by the host, and not recorded: descriptors for a program in the sandbox (`SandboxSpec.stdio`).
    stdio: tuple[int, ...] = ()
    state_owner: str = ""  #: of a root, set by the host: the server's agent that alone owns the states of its tree
    import_dir: pathlib.Path | None = None  #: set by the host: a folder to read and import from, including later files
    call_id: CallId | None = None  #: the tool call that asked for it
    key: str = ""  #: distinguishes spawns of one run that no tool call requested
    request_key: str = ""  #: the sandbox's request for the spawn, as in `CurrentCall`

    def __post_init__(self) -> None:
        check_text("prompt", self.prompt)
        check_text("description", self.description)
        check_instance("name", self.name, (str, NoneType), "text, or None")
        check_instance("args", self.args, (tuple, list), "a tuple")
        check_instance("kwargs", self.kwargs, Mapping, "a mapping")
        check_instance("limits", self.limits, Limits, "ramet.Limits")
        check_instance("watch", self.watch, Watch, "ramet.Watch")
        check_instance("policy", self.policy, (Policy, NoneType), "ramet.Policy")
        check_callable("on_output", self.on_output)
        self._check_fork()
        if self.state_owner:
            checked_name("state_owner", self.state_owner)
        if len(self.stdio) not in (0, 1, 3) or (self.stdio and self.policy is None):
            raise InvalidValue("stdio", self.stdio, "a descriptor of a terminal, or three of pipes, and a policy")
        if self.mode not in (None, "fresh", "fork"):
            raise InvalidValue("mode", self.mode, "'fresh', 'fork', or None")

    def _check_fork(self) -> None:
        check_text("fork_of", self.fork_of)
        at = self.fork_at
        if at is not None and (not self.fork_of or isinstance(at, bool) or not isinstance(at, int) or at < 1):
            raise InvalidValue("fork_at", at, "the number of an event of the tree of fork_of, from 1, or None")
        if self.fork_of and (self.branch or self.mode == "fork" or (self.agent is None and not self.subagent_type)):
            expected = "a run, with an agent or a subagent_type, and without branch=True or mode='fork'"
            raise InvalidValue("fork_of", self.fork_of, expected)


def check_request(request: object) -> None:
    """Raise InvalidValue if the value is no SpawnRequest, for example a dict of its fields."""
    check_instance("request", request, SpawnRequest, "a ramet.SpawnRequest")


class CreationReceipt(NamedTuple):
    """A recorded agent: its handle, and the requested capabilities that it did not get."""

    ref: str
    dropped_names: tuple[str, ...] = ()


class SpawnHandle(Protocol):
    """The result of a spawn."""

    @property
    def id(self) -> RunId: ...
    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def background(self) -> bool: ...
    async def result(self) -> Result:
        """Wait for the end, without a time limit, and return the result."""

    async def end(self) -> Result:
        """Wait like `result`, but return as soon as the run has ended: for callers that only record the result."""

    async def cancel(self, reason: str = ...) -> StopReceipt:
        """End the run and all below it; they have ended when this returns."""
