"""The requests and answers of the three services, and the contract of agent types.

This module has data only; `ramet.services.http` serves it over HTTP.

**AgentSpawnerService** (`spawner`) reserves teams and starts and ends agents in them. **AgentService** (`agents`) leads
conversations with one agent, for clients that have its key. **PackagingService** (`packaging`) makes images of code
that agents can import.

An agent type is the agent's side of a conversation: only the type reads the bodies of messages.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec
from msgspec import Raw, Struct

from ramet.core.limits import Limits
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Policy
from ramet.services.errors import Undecodable
from ramet.services.rules import Rules
from ramet.services.validation_errors import hide, invalid_value_of

if TYPE_CHECKING:  # Clients need the data only, and not the code that runs agents.
    from ramet.host.runtime import AgentRuntime

#: The rights of a key of an agent. The owner's key has all of them; a delegated key has the rights it was made with.
Right = Literal["turn", "control", "history", "info", "events", "mail", "kill", "delegate"]
RIGHTS: tuple[Right, ...] = ("turn", "control", "history", "info", "events", "mail", "kill", "delegate")

#: A "waiting" agent continues once the values that are not recorded are supplied.
AgentState = Literal["starting", "idle", "working", "waiting", "failed", "ended"]


class BaseRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request. Unknown fields are refused by name."""


class CreateTeam(BaseRequest):
    """Reserve resources: `agents` is required; cpu (cores), memory_mb, tokens, usd and others are counted if named."""

    resources: dict[str, float]
    name: str = ""
    config: Raw = Raw(b"null")  #: opaque; the backend checks and receives it
    labels: dict[str, str] = {}
    defaults: dict[str, float] = {}  #: default limits of its agents: of counted resources, except the machine's


class TeamInfo(Struct, kw_only=True):
    """A team: `held` is what its living agents hold, `spent` what is used up permanently, `free` what is left.

    Of `bounded` the machine itself lets all its agents together, and all below them, have no more: control groups do.
    Others are counted. It is known from the first agent of this server with a policy on.
    """

    id: str
    name: str
    resources: dict[str, float]
    held: dict[str, float]
    spent: dict[str, float]
    free: dict[str, float]
    bounded: list[str]
    agents: int
    labels: dict[str, str]
    created_at: str
    defaults: dict[str, float] = {}
    config: Any = None  #: as the backend received it


class CreatedTeam(Struct):
    """A new team and its key, which is shown only here."""

    team: TeamInfo
    key: str


class SpawnAgent(BaseRequest):
    """Start an agent in a team. Only the agent type reads `spawn_info`, and says what it accepts."""

    team: str
    name: str
    agent_type: str
    spawn_info: Raw = Raw(b"null")
    image: str = ""  #: id of an image; "" is the plain one
    transport_format: str = ""  #: one that the agent type declares; "" is its first
    #: None: the default, unless no part of the agent touches the machine, or a rule of the server says otherwise.
    policy: Policy | None = None
    limits: dict[str, float] = {}  #: tokens, usd, model_calls, …; required for those that the team counts
    metadata: dict[str, str] = {}  #: at most 16 KiB together with `labels`
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    wait_s: float = 0.0  #: seconds to wait in the queue of a full team, at most 600; 0 refuses at once
    #: Seconds for which a failed agent is kept with its folders; then it is removed. None: until it is killed.
    keep_failed_s: float | None = None


class AgentInfo(Struct, kw_only=True):
    """An agent, without its keys."""

    id: str
    team: str
    name: str
    path: str  #: team name or id, a slash, the name
    agent_type: str
    transport_format: str
    state: AgentState
    image: str
    labels: dict[str, str]
    metadata: dict[str, str]
    run: str  #: id of the root of its tree; empty before its first turn
    isolation: str  #: its isolation level: "none" in the host
    bundles: Sequence[str] = ()  #: that were loaded while it was running
    turns: int
    created_at: str
    error: ErrorInfo | None = None
    kept_until: str = ""  #: of a failed agent that is kept for a while
    kept: list[str] = []  #: the folders that it left on the server's machine: its own and its sandbox's


class SpawnedAgent(Struct):
    """A new agent and its owner's key (the nonce), which is shown only here."""

    agent: AgentInfo
    nonce: str


class SupplyValues(BaseRequest):
    """Values by name for an agent that waits for them, since the journal never holds them: all that are missing."""

    env: dict[str, str] = {}
    env_vars: dict[str, str] = {}  #: of its policy
    secrets: dict[str, str] = {}  #: of its policy


class ListAgents(BaseRequest):
    """Choose the agents to list; `under` is a path: that agent and all below it."""

    team: str = ""
    state: str = ""
    labels: dict[str, str] = {}
    under: str = ""


class Delegate(BaseRequest):
    """Create a narrower key, which the owner may revoke; with `owner`, pass the ownership: the old key ends."""

    rights: Sequence[Right] = ()
    owner: bool = False
    seconds: float | None = None  #: duration; None means until it is revoked


class DelegatedKey(Struct):
    """A new key, which is shown only here; `id` is needed to revoke the key."""

    id: str
    key: str
    rights: Sequence[Right]


ChunkKind = Literal["chunk", "error", "done"]


class Chunk(NamedTuple):
    """A piece of an answer: `number` counts the chunks of one turn from 1; a reader continues after a number."""

    turn: str  #: id of the turn
    number: int
    kind: ChunkKind
    body: bytes  #: as the agent wrote it, in its transport format; of an error, a problem document as JSON


class CodeTool(NamedTuple):
    """A function of an image that is a tool, as described by its source."""

    module: str
    name: str
    description: str
    schema: Mapping[str, Any]  #: JSON schema of its arguments

    @property
    def reference(self) -> str:
        """The name by which the tool is requested."""
        return f"{self.module}:{self.name}"


class Image(NamedTuple):
    """An image for the backends of this server: folders by their digest, which agents may read and import from."""

    id: str
    folders: tuple[pathlib.Path, ...]
    packages: tuple[pathlib.Path, ...] = ()  #: the packages that were installed for it
    skills: tuple[pathlib.Path, ...] = ()  #: folders of skills of its bundles
    bundles: tuple[str, ...] = ()  #: their ids
    tools: tuple[CodeTool, ...] = ()  #: tools that its bundles declare
    preloaded_skills: tuple[str, ...] = ()  #: names of skills that its bundles declare


class LoadableBundle(NamedTuple):
    """A bundle that may be loaded into a running agent: it matches its digest, and no other bundle hides its parts."""

    id: str
    folder: pathlib.Path
    files: tuple[str, ...]  #: without files that only packaging uses
    tools: tuple[CodeTool, ...]
    skills: tuple[str, ...]  #: names of skills that it declares


class LoadedBundles(Protocol):
    """The bundles that were loaded into one agent, in a folder that its sandboxes read and import from."""

    save: Callable[[], Awaitable[None]]  #: records which bundles are loaded

    async def open(self) -> None:
        """Create the folder, with the bundles that were loaded before.

        Raises Unknown, Damaged, InvalidValue, OSError.
        """

    async def close(self) -> None:
        """Remove the folder; the record stays. Idempotent."""

    @property
    def folder(self) -> pathlib.Path:
        """The folder of the bundles, which has the same path inside the sandbox. It exists until the agent ends."""

    @property
    def bundles(self) -> tuple[LoadableBundle, ...]:
        """The loaded bundles, in the order in which they were loaded."""

    @property
    def required_ids(self) -> tuple[str, ...]:
        """The ids of the bundles that are loaded, or are being loaded."""

    async def load(self, id: str, check: Callable[[LoadableBundle], None]) -> LoadableBundle:
        """Link a bundle into the folder, and record it.

        Raises Unknown, Damaged, InvalidValue, the errors of `check`, and Gone if the agent ends meanwhile.
        """

    async def unload(self, id: str) -> LoadableBundle:
        """Remove a bundle from the folder. Raises Unknown."""


PLAIN = Image("", ())


@dataclass(frozen=True)
class AgentSpec:
    """The specification with which an agent type opens an agent: everything is checked and reserved."""

    id: str
    name: str
    path: str
    info: Any  #: `spawn_info`, as the type's own structure
    runtime: AgentRuntime
    folder: pathlib.Path  #: the agent's own folder, which survives a restart
    image: Image = PLAIN
    policy: Policy | None = None
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    run: str = ""  #: of an agent that a killed server left: the root of its tree, to be resumed
    loaded_bundles: LoadedBundles | None = None  #: None in the host, where no code of bundles runs
    rules: Rules = field(default_factory=Rules)  #: of the server's operator


class RunningAgent(Protocol):
    """A running agent, as its type opened it."""

    @property
    def run(self) -> str:
        """The id of the root of its tree; empty before there is one."""

    @property
    def isolation(self) -> str:
        """The isolation level of the agent, "none" in the host."""

    @property
    def end(self) -> asyncio.Future[ErrorInfo | None]:
        """A future that is done when the agent will answer no more turn: None if it was closed, else the error."""

    def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        """Answer a message, both in a transport format of the type. Leaving the iteration interrupts the turn.

        Raises InvalidValue for an invalid body, and RametError for other errors, after the chunks that were sent so
        far.
        """

    async def interrupt(self) -> None:
        """End the running turn; the agent and its history stay."""

    async def control(self, operation: Any) -> Any:
        """Execute one of the type's operations; the answer is plain data."""

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """Return the conversation so far, as plain data: at least `role` and `content` of each message."""

    async def mail(self, text: str) -> None:
        """Send a message that the agent reads at its next step. Raises MailRefused."""

    def usage(self) -> Mapping[str, float]:
        """Return what the agent has used up: tokens, usd, by their names."""

    async def close(self, reason: str) -> None:
        """End the agent and all below it, and wait until all have ended. Idempotent."""


@runtime_checkable
class ResumableAgent(Protocol):
    """An agent that continues in the middle of a turn after a takeover by another kernel; turns of others are cut."""

    @property
    def turns_taken(self) -> int:
        """The number of turns in the agent's own record, including the running one."""

    @property
    def tree(self) -> str:
        """The tree that the agent has until its end: only the kernel of that tree writes its turns.

        Empty if it has none.
        """

    @property
    def restarts_turn(self) -> bool:
        """True if another kernel would repeat the running turn: then it should end here, if it ends soon."""

    def resume_turn(self, number: int, body: bytes, format: str, sent_chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
        """Continue the turn of this number if the agent has recorded it, else begin it.

        Yields the chunks after those that were `sent_chunks`. Raises like `turn`.
        """


class AgentType(Protocol):
    """A kind of agent: a plugin, found by the entry points "ramet.agent_types"."""

    name: str
    spawn_info: type  #: an msgspec structure that refuses unknown fields
    transport_formats: Sequence[str]
    operations: Mapping[str, type]  #: by their "@type": also such structures

    async def check(self, spec: AgentSpec) -> None:
        """Refuse an agent that cannot be opened, before anything is reserved. Raises a RametError."""

    async def open(self, spec: AgentSpec) -> RunningAgent:
        """Start the agent. Raises a RametError, and leaves nothing then."""


@runtime_checkable
class DeduplicatesMail(Protocol):
    """An agent that can leave out mail that repeats a recent message; other agents refuse such requests."""

    async def mail_once(self, text: str, dedupe_s: float) -> None:
        """Send a message like `mail`, unless it equals one of the last `dedupe_s` seconds. Raises MailRefused."""


@runtime_checkable
class PerAgentFormats(Protocol):
    """An agent type whose agents differ in their transport formats."""

    def formats_of(self, info: Any) -> Sequence[str]:
        """Return the formats of an agent with this `spawn_info`, its default first. Raises InvalidValue."""


def formats_of(type: AgentType, info: Any) -> Sequence[str]:
    """Return the transport formats of an agent of this type with this `spawn_info`, its default first.

    Raises InvalidValue.
    """
    return tuple(type.formats_of(info) if isinstance(type, PerAgentFormats) else type.transport_formats)


@runtime_checkable
class ReadsFiles(Protocol):
    """An agent type whose agents read the images and documents of a message; others read its text alone."""

    reads_files: bool


@runtime_checkable
class ReadsParameters(Protocol):
    """An agent type some of whose agents read all parameters of a model client's request, and not only the messages."""

    def reads_parameters(self, info: Any, format: str) -> bool:
        """Return whether an agent with this `spawn_info` reads all parameters in a format."""


@runtime_checkable
class CompletesPolicy(Protocol):
    """An agent type whose agents need more of a sandbox than the default policy gives, and always run in one."""

    def complete_policy(self, info: Any, policy: Policy | None) -> Policy:
        """Return the policy of an agent with this `spawn_info`: what is requested, and for the rest what it needs.

        The team reserves what this policy states, and the operator's rules apply to it. Raises a RametError.
        """


@runtime_checkable
class HostCapable(Protocol):
    """An agent type some of whose agents may run in the host, because no part of them touches the machine."""

    def needs_sandbox(self, info: Any, image: Image) -> bool:
        """Return whether an agent with this `spawn_info` touches files, processes, the network or foreign code."""


def needs_sandbox(type: AgentType, info: Any, image: Image) -> bool:
    """Return whether an agent runs in a sandbox unless a rule says otherwise.

    The result is True for every type that is not HostCapable.
    """
    return not isinstance(type, HostCapable) or type.needs_sandbox(info, image)


class ImageStore(Protocol):
    """The source of images. Images and bundles of other teams are Unknown to a team; `team` is its id."""

    async def image(self, id: str, team: str, /) -> Image:
        """Return the image of that id; "" is the plain one. Raises Unknown."""

    async def bundle(self, id: str, team: str, /) -> object:
        """Return the record of a bundle. Raises Unknown."""

    async def loadable(self, id: str, present_ids: Sequence[str], team: str, /) -> LoadableBundle:
        """Return a bundle, checked again, for use together with the bundles `present_ids`.

        Raises Unknown, Damaged, InvalidValue.
        """


def decode(kind: Any, data: bytes | Raw, subject: str, within: str | None = None) -> Any:
    """Decode JSON into a structure. `within` is the prefix of the names of fields, by default `subject`.

    Raises InvalidValue, which names the field, and Undecodable for data that is not JSON.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as problem:
        raise invalid_value_of(problem, kind, data, subject, within=subject if within is None else within) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as problem:
        raise Undecodable(subject, hide(bytes(data)), f"JSON ({problem})") from None
