"""The end of a run: one closed set of statuses, one result contract."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, cast

import msgspec
from msgspec import Struct, field

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: Type of a value: an agent's `output`, if that is a class.
    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar  # Defaults of type variables come with Python 3.13.

    T = TypeVar("T")


#: The prefix of every branch that a run's own copy of a repository is on.
BRANCH_PREFIX = "ramet/"


class Status(StrEnum):
    """The statuses with which a run can end, and `paused`, which a caller may ask to be told: that is no end."""

    COMPLETED = "completed"  #: with a value; exit code 0
    FAILED = "failed"  #: with an error of the agent, of its model or of its function; 1
    CANCELLED = "cancelled"  #: by a person, by code, or with its parent; 130
    TIMEOUT = "timeout"  #: at its limit of seconds; 124
    BUDGET_EXHAUSTED = "budget_exhausted"  #: at another limit; 4
    OOM = "oom"  #: its sandbox needed more memory than its policy grants; 137
    CRASHED = "crashed"  #: its process ended without a result; 5
    LOST = "lost"  #: with its kernel, and it must not begin again; 6
    NEEDS_INPUT = "needs_input"  #: it asks its caller for a clarification; 3
    PAUSED = "paused"  #: it goes on when its limit is raised; 7


#: Status → exit code of a process that reports the status. 0 only for a result; 2 is reserved for usage errors.
EXIT_CODES: dict[Status, int] = {
    Status.COMPLETED: 0,
    Status.FAILED: 1,
    Status.NEEDS_INPUT: 3,
    Status.BUDGET_EXHAUSTED: 4,
    Status.CRASHED: 5,
    Status.LOST: 6,
    Status.PAUSED: 7,
    Status.TIMEOUT: 124,
    Status.CANCELLED: 130,
    Status.OOM: 137,
}


class Usage(Struct, frozen=True, kw_only=True):
    """The resources that were used.

    Input tokens include cache reads. `estimated` means that a provider never confirmed a part.
    """

    model_calls: int = 0  #: requests sent to providers, retries included
    tool_calls: int = 0
    agents: int = 0  #: runs spawned below
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0  #: the part of `input_tokens` that a provider read from its cache
    usd: float = 0.0  #: US dollars, by the prices of the runtime
    estimated: bool = False

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            agents=self.agents + other.agents,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            usd=self.usd + other.usd,
            estimated=self.estimated or other.estimated,
        )

    def __sub__(self, earlier: Usage) -> Usage:
        """Return the part of this usage that followed the usage `earlier`. `estimated` is that of the whole."""
        return Usage(
            model_calls=self.model_calls - earlier.model_calls,
            tool_calls=self.tool_calls - earlier.tool_calls,
            agents=self.agents - earlier.agents,
            input_tokens=self.input_tokens - earlier.input_tokens,
            output_tokens=self.output_tokens - earlier.output_tokens,
            cache_read_tokens=self.cache_read_tokens - earlier.cache_read_tokens,
            usd=self.usd - earlier.usd,
            estimated=self.estimated,
        )


NO_USAGE = Usage()


class ErrorInfo(Struct, frozen=True, kw_only=True):
    """An error as data: the name of its type, one sentence, and the run whose limit fired if that is known."""

    type: str
    message: str
    scope: str | None = None  #: path of the run whose limit fired; for a run stopped with its parent, a run above


class Artifact(Struct, frozen=True, kw_only=True):
    """A regular file that a run left in its working directory."""

    name: str  #: path below the working directory
    size: int  #: in bytes
    path: str | None = None  #: the host's copy; None inside a sandbox, where `read_artifact` fetches it

    def without_path(self) -> Artifact:
        """Return a copy without `path`, for readers who must not know where the file is stored."""
        return Artifact(name=self.name, size=self.size)


class Result(Struct, Generic[T], frozen=True, kw_only=True):
    """The result of a run.

    A `completed` run always has a value. Any other run has an error, and the partial text that was found until then.
    """

    status: Status
    value: T = cast("Any", None)  #: value of the type of the agent's `output`; None unless the run completed
    error: ErrorInfo | None = None  #: its type and message; None if the run completed
    partial: str = ""  #: text found before an end that was not a completion
    usage: Usage = NO_USAGE  #: usage of the run alone
    usage_subtree: Usage = NO_USAGE  #: usage of the run and all runs below
    #: paths on the host; or the branch with the work of a run in a clone, and how much it changed
    artifacts: tuple[str, ...] = field(default_factory=tuple)
    files: tuple[Artifact, ...] = ()  #: files that a sandboxed run left in its working directory
    stdout: str = ""  #: the newest text that a sandboxed run printed
    stderr: str = ""  #: likewise, on stderr

    @property
    def exit_code(self) -> int:
        """The exit code: 0 for a completed run, else the published code of the status."""
        return EXIT_CODES[self.status]

    @property
    def text(self) -> str:
        """The text for a reader: the value, as JSON unless it is text, or the partial text."""
        return self.partial if self.value is None else value_text(self.value)

    @property
    def branch(self) -> str:
        """The branch with the work of a run in a clone; empty if there is none."""
        return branch_in(self.artifacts)


def branch_in(artifacts: Iterable[str]) -> str:
    """Return the branch that a run left; empty if it left none. Everything else that a run leaves is a path."""
    return next((each for each in artifacts if each.startswith(BRANCH_PREFIX)), "")


class StepFailure(Struct, frozen=True, kw_only=True):
    """A placeholder for the value of a step that failed while the other steps continued."""

    step: str  #: name of the agent
    status: Status
    message: str
    path: str = ""  #: path of its run, if the run was spawned


def value_text(value: Any) -> str:
    """Return text unchanged, and any other value as compact JSON; its repr if it has no form in JSON."""
    if isinstance(value, str):
        return value
    try:
        return value_json(value).decode()
    except Exception:  # for example a cycle, or a model whose own serialiser failed
        return safe_repr(value)


def value_json(value: Any) -> bytes:
    """Return a value as compact JSON. Fields keep the names that they have in the value's type.

    Parts that are no data become their repr. Raises RecursionError if the value is nested too deeply, and the errors of
    a pydantic model's own serialiser.
    """
    try:
        return msgspec.json.encode(value, enc_hook=_data_of)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can hold as an escape only
        data = msgspec.to_builtins(value, str_keys=True, enc_hook=_data_of)
        return json.dumps(data, separators=(",", ":")).encode()


def _data_of(value: Any) -> Any:
    """Return the data of a value that msgspec does not know. Nothing here imports pydantic, numpy or pathlib."""
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    if callable(to_list := getattr(value, "tolist", None)):
        return to_list()
    return str(value) if hasattr(value, "__fspath__") else safe_repr(value)


def safe_repr(value: Any) -> str:
    """Return a value's repr for people to read.

    If the repr fails, return a text that names the type and the error.
    """
    try:
        return repr(value)
    except Exception as error:
        return f"(a {type(value).__qualname__} whose repr failed: {type(error).__name__})"


class AgentResult(Struct, frozen=True, kw_only=True):
    """The return value of `run_agent` and `spawn_sub_agent`, however the run ended.

    `exit_code` is 0 only with a result. `output` is the value, `error` describes the failure. `stdout` and `stderr`
    hold the newest text of each, bounded.
    """

    exit_code: int  #: see `Status`
    status: Status
    output: Any = None
    error: ErrorInfo | None = None  #: its type and message; None if the run completed
    artifacts: tuple[Artifact, ...] = ()  #: files that the run left in its working directory
    usage: Usage = NO_USAGE  #: usage of the run and all runs below
    session_id: str = ""  #: the id of the run
    branch: str = ""  #: with the work of a run in a clone of a repository
    stdout: str = ""
    stderr: str = ""
