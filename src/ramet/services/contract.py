"""What the three services are asked and answer, and what an agent type is. Data only; `app` speaks it over HTTP.

**AgentSpawnerService** (`spawner`) reserves teams and starts and ends agents in them. **AgentService** (`agents`) talks
with one agent, for whoever has its key. **PackagingService** (`packaging`) makes images of code that agents can import.

An agent type is the agent's side of a conversation: it alone reads the bodies of messages.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec
from msgspec import Raw, Struct

from ramet.core.budget import Limits
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Policy
from ramet.services.errors import Undecodable
from ramet.services.rules import Rules
from ramet.services.validation_errors import hidden, invalid_value_of

if TYPE_CHECKING:  # Clients need the data, and none of what runs agents.
    from ramet.host.runtime import AgentRuntime

#: What a key of an agent lets its holder do. The owner's key does all; a delegated one what it was made for.
Right = Literal["turn", "control", "history", "info", "events", "mail", "kill", "delegate"]
RIGHTS: tuple[Right, ...] = ("turn", "control", "history", "info", "events", "mail", "kill", "delegate")

#: One that is "waiting" goes on once values that are not on record are supplied.
AgentState = Literal["starting", "idle", "working", "waiting", "failed", "ended"]


class BaseRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request. Unknown fields are refused by name."""


class CreateTeam(BaseRequest):
    """Reserve resources: `agents` is required; cpu (cores), memory_mb, tokens, usd and others are counted if named."""

    resources: dict[str, float]
    name: str = ""
    config: Raw = Raw(b"null")  #: opaque; the backend checks it, and gets it
    labels: dict[str, str] = {}
    defaults: dict[str, float] = {}  #: limits of its agents that do not state them: of what is counted, but the machine


class TeamInfo(Struct, kw_only=True):
    """A team: `held` is what its living agents have, `spent` what is used up for good, `free` what is left.

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
    config: Any = None  #: as its backend got it


class CreatedTeam(Struct):
    """The only time that the team's key is shown."""

    team: TeamInfo
    key: str


class SpawnAgent(BaseRequest):
    """Start an agent in a team; `spawn_info` is for the agent type alone, which says what it accepts."""

    team: str
    name: str
    agent_type: str
    spawn_info: Raw = Raw(b"null")
    image: str = ""  #: id of an image; none is the plain one
    transport_format: str = ""  #: any that the agent type declares; none is its first
    #: None: the default one, unless nothing of the agent touches the machine, or a rule of the server says otherwise.
    policy: Policy | None = None
    limits: dict[str, float] = {}  #: tokens, usd, model_calls, …; required for what the team counts of these
    metadata: dict[str, str] = {}  #: 16 KiB together with `labels`
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    wait_s: float = 0.0  #: how long to stand in line when the team is full, at most 600; 0 is refused at once
    #: For how long, once it has failed, it is there with its folders; then all of it goes. None: until it is killed.
    keep_failed_s: float | None = None


class AgentInfo(Struct, kw_only=True):
    """An agent, without anything that opens it."""

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
    isolation: str  #: the level that it has: "none" in the host
    bundles: Sequence[str] = ()  #: that were loaded while it lived
    turns: int
    created_at: str
    error: ErrorInfo | None = None
    kept_until: str = ""  #: of one that failed and was to be kept for a while
    kept: list[str] = []  #: where what is left of it is, on the machine of the server: its folder, its sandbox's


class SpawnedAgent(Struct):
    """The only time that the owner's key, the nonce, is shown."""

    agent: AgentInfo
    nonce: str


class SupplyValues(BaseRequest):
    """Values that are not on record, by name, for an agent that is waiting for them: all that are missing."""

    env: dict[str, str] = {}
    env_vars: dict[str, str] = {}  #: of its policy
    secrets: dict[str, str] = {}  #: of its policy


class ListAgents(BaseRequest):
    """Which agents to list; `under` is a path, for itself and all below."""

    team: str = ""
    state: str = ""
    labels: dict[str, str] = {}
    under: str = ""


class Delegate(BaseRequest):
    """A narrower key of an agent, which its owner may revoke; or with `owner` the ownership: the old key dies."""

    rights: Sequence[Right] = ()
    owner: bool = False
    seconds: float | None = None  #: for how long; None is until it is revoked


class DelegatedKey(Struct):
    """The only time that it is shown; `id` is what it is revoked by."""

    id: str
    key: str
    rights: Sequence[Right]


class Chunk(NamedTuple):
    """A piece of an answer: `number` counts those of one turn from 1, which is what a reader resumes by."""

    turn: str  #: id of the turn
    number: int
    kind: Literal["chunk", "error", "done"]
    body: bytes  #: as the agent wrote it, in its transport format; of an error, a problem document as JSON


class CodeTool(NamedTuple):
    """A function of an image that is a tool, as its source tells it."""

    module: str
    name: str
    description: str
    schema: Mapping[str, Any]  #: JSON schema of its arguments

    @property
    def reference(self) -> str:
        """As it is asked for."""
        return f"{self.module}:{self.name}"


class Image(NamedTuple):
    """An image as the backends here use it: folders by their digest, which agents may read and import from."""

    id: str
    folders: tuple[pathlib.Path, ...]
    packages: tuple[pathlib.Path, ...] = ()  #: what was installed for it, once
    skills: tuple[pathlib.Path, ...] = ()  #: folders of skills that its bundles bring
    bundles: tuple[str, ...] = ()  #: their ids
    tools: tuple[CodeTool, ...] = ()  #: that its bundles declare
    preloaded: tuple[str, ...] = ()  #: names of skills that they declare


class LoadableBundle(NamedTuple):
    """A bundle that may be loaded into an agent that lives: whole, as its digest says, and nothing hides it."""

    id: str
    folder: pathlib.Path
    files: tuple[str, ...]  #: without those that are for packaging alone
    tools: tuple[CodeTool, ...]
    skills: tuple[str, ...]  #: that it declares


class LoadedBundles(Protocol):
    """The bundles that were loaded into one agent, in a folder that its sandboxes read and import from."""

    keep: Callable[[], Awaitable[None]]  #: puts on record what is loaded

    async def open(self) -> None:
        """Make the folder, with what was loaded before. Raises Unknown, Damaged, InvalidValue, OSError."""

    async def close(self) -> None:
        """Remove the folder; what is on record stays there. Idempotent."""

    @property
    def folder(self) -> pathlib.Path:
        """Where they are, seen at the same path inside; there while the agent is."""

    @property
    def loaded(self) -> tuple[LoadableBundle, ...]:
        """What is loaded now, in that order."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The ids of what is loaded, or is about to be."""

    async def load(self, id: str, check: Callable[[LoadableBundle], None]) -> LoadableBundle:
        """Put a bundle there, and on record. Raises Unknown, Damaged, InvalidValue, and what `check` finds wrong."""

    async def unload(self, id: str) -> LoadableBundle:
        """Take one away. Raises Unknown."""


PLAIN = Image("", ())


@dataclass(frozen=True)
class AgentSpec:
    """What an agent type gets to open an agent with: all checked, all reserved."""

    id: str
    name: str
    path: str
    info: Any  #: `spawn_info`, as the type's own structure
    runtime: AgentRuntime
    folder: pathlib.Path  #: of its own, there again after a restart
    image: Image = PLAIN
    policy: Policy | None = None
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    run: str = ""  #: of an agent that a killed server left: the root of its tree, to be gone on with
    shelf: LoadedBundles | None = None  #: None in the host, where no code of bundles runs
    rules: Rules = field(default_factory=Rules)  #: of the server's operator


class RunningAgent(Protocol):
    """A living agent, as its type opened it."""

    @property
    def run(self) -> str:
        """The id of the root of its tree; empty before there is one."""

    @property
    def isolation(self) -> str:
        """The level that it has, "none" in the host."""

    @property
    def ended(self) -> asyncio.Future[ErrorInfo | None]:
        """Done when it will answer no more turn: None if it was closed, else why."""

    def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        """Answer a message, both in a transport format of the type. Leaving the iteration interrupts the turn.

        Raises InvalidValue for a body that is none, and RametError for what went wrong, after what was said so far.
        """

    async def interrupt(self) -> None:
        """End the turn under way, keeping the agent and its history."""

    async def control(self, operation: Any) -> Any:
        """Do one of the type's operations; the answer is plain data."""

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """The conversation so far, as plain data: at least `role` and `content` of each message."""

    async def mail(self, text: str) -> None:
        """A message that is read at the agent's next step. Raises MailRefused."""

    def spent(self) -> Mapping[str, float]:
        """What it has used for good: tokens, usd, by their names."""

    async def close(self, reason: str) -> None:
        """End it and all below it, and wait until they are gone. Idempotent."""


@runtime_checkable
class ResumableAgent(Protocol):
    """An agent that goes on in the middle of a turn when another kernel takes it over; the turns of others are cut."""

    @property
    def turns_taken(self) -> int:
        """How many turns its own record has, the one under way among them."""

    @property
    def tree(self) -> str:
        """The tree that it has all its life: only the kernel of that writes of its turns. Empty if it has no such."""

    @property
    def begins_anew(self) -> bool:
        """Whether the turn under way would be done anew elsewhere: better that it ends here, if it soon does."""

    def go_on(self, number: int, body: bytes, format: str, said: Sequence[bytes]) -> AsyncIterator[bytes]:
        """Go on with a turn, which is the one of this number if it got into its record, and is begun if it did not.

        Yields what comes behind the chunks that were `said`. Raises like `turn`.
        """


class AgentType(Protocol):
    """One kind of agent; a plugin, found by the entry points "ramet.agent_types"."""

    name: str
    spawn_info: type  #: a structure of msgspec that refuses unknown fields
    transport_formats: Sequence[str]
    operations: Mapping[str, type]  #: by their "@type": structures, likewise

    async def check(self, opening: AgentSpec) -> None:
        """Refuse what cannot be opened, before anything is reserved. Raises a RametError."""

    async def open(self, opening: AgentSpec) -> RunningAgent:
        """Start it. Raises a RametError, and leaves nothing then."""


@runtime_checkable
class DeduplicatesMail(Protocol):
    """An agent that can leave out mail that says what it was told a moment ago; of others, nobody may ask that."""

    async def mail_once(self, text: str, dedupe_s: float) -> None:
        """Take a message like `mail`, unless it equals one of the last `dedupe_s` seconds. Raises MailRefused."""


@runtime_checkable
class PerAgentFormats(Protocol):
    """An agent type whose agents differ in the formats that they are talked with in."""

    def formats_of(self, info: Any) -> Sequence[str]:
        """Those of an agent with this `spawn_info`, its default first. Raises InvalidValue."""


def formats_of(type: AgentType, info: Any) -> Sequence[str]:
    """The transport formats of an agent of this type with this `spawn_info`, its default first. Raises InvalidValue."""
    return tuple(type.formats_of(info) if isinstance(type, PerAgentFormats) else type.transport_formats)


@runtime_checkable
class ReadsParameters(Protocol):
    """An agent type some of whose agents read all of a request of a client of models, not only what is said."""

    def reads_parameters(self, info: Any, format: str) -> bool:
        """Whether an agent with this `spawn_info` does, in a format."""


@runtime_checkable
class HostCapable(Protocol):
    """An agent type some of whose agents may work in the host, since nothing of them touches the machine."""

    def needs_sandbox(self, info: Any, image: Image) -> bool:
        """Whether files, processes, the network or code of others are touched by an agent with this `spawn_info`."""


def needs_sandbox(type: AgentType, info: Any, image: Image) -> bool:
    """Whether an agent works in a sandbox unless a rule says otherwise; True for every type that does not say."""
    return not isinstance(type, HostCapable) or type.needs_sandbox(info, image)


class ImageStore(Protocol):
    """Where images are found. What another team has is Unknown to a team, which is named by its id."""

    async def image(self, id: str, team: str, /) -> Image:
        """The image of that id; "" is the plain one. Raises Unknown."""

    async def bundle(self, id: str, team: str, /) -> object:
        """What is kept of a bundle. Raises Unknown."""

    async def loadable(self, id: str, beside: Sequence[str], team: str, /) -> LoadableBundle:
        """A bundle, checked once more, to be had beside others. Raises Unknown, Damaged, InvalidValue."""


def decoded(kind: type, data: bytes | Raw, what: str) -> Any:
    """JSON as a structure. Raises InvalidValue, which names the field; of those Undecodable for what is no JSON."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as problem:
        raise invalid_value_of(problem, kind, data, what, within=what) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as problem:
        raise Undecodable(what, hidden(bytes(data)), f"JSON ({problem})") from None
