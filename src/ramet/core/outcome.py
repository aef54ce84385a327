"""How a run ended: one closed set of statuses, one result contract."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, cast

from msgspec import Struct, field

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: Type of a value: an agent's `output`, if that is a class.
    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar  # Defaults of type variables come with Python 3.13.

    T = TypeVar("T")


class Status(StrEnum):
    """Every way in which a run can end."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    BUDGET_EXHAUSTED = "budget_exhausted"
    OOM = "oom"
    CRASHED = "crashed"
    LOST = "lost"
    NEEDS_INPUT = "needs_input"


#: Status → exit code of a process that reports it. 0 only for a result; 2 stays free for usage errors.
EXIT_CODES: dict[Status, int] = {
    Status.COMPLETED: 0,
    Status.FAILED: 1,
    Status.NEEDS_INPUT: 3,
    Status.BUDGET_EXHAUSTED: 4,
    Status.CRASHED: 5,
    Status.LOST: 6,
    Status.TIMEOUT: 124,
    Status.CANCELLED: 130,
    Status.OOM: 137,
}


class Usage(Struct, frozen=True, kw_only=True):
    """What was spent. Input counts cache reads; `estimated` says that a part was never confirmed by a provider."""

    model_calls: int = 0
    tool_calls: int = 0
    agents: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    usd: float = 0.0
    estimated: bool = False

    @property
    def tokens(self) -> int:
        """Input and output together."""
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


NOTHING_USED = Usage()


class ErrorInfo(Struct, frozen=True, kw_only=True):
    """An error as data: its type's name, one sentence, and what fired it if that is known."""

    type: str
    message: str
    scope: str | None = None  #: path of the run whose limit fired: of a run stopped with its parent, one above it


class Artifact(Struct, frozen=True, kw_only=True):
    """A regular file that a run left in its working directory."""

    name: str  #: its path below the working directory
    size: int  #: in bytes
    path: str | None = None  #: the host's copy; None inside a sandbox, where `read_artifact` fetches it

    def without_path(self) -> Artifact:
        """The same for readers who must not know where it lies."""
        return Artifact(name=self.name, size=self.size)


class Result(Struct, Generic[T], frozen=True, kw_only=True):
    """What a run leaves. `completed` always has a value; anything else has an error, and what was found so far."""

    status: Status
    value: T = cast("Any", None)  #: of the agent's `output`; None unless the run completed
    error: ErrorInfo | None = None
    partial: str = ""  #: text found before an end that was not a completion
    usage: Usage = NOTHING_USED
    usage_subtree: Usage = NOTHING_USED
    artifacts: tuple[str, ...] = field(default_factory=tuple)  #: paths on the host
    files: tuple[Artifact, ...] = ()  #: what a sandboxed run left in its working directory
    stdout: str = ""  #: the newest text that a sandboxed run printed
    stderr: str = ""

    @property
    def exit_code(self) -> int:
        """0 for a completion, else the published code of the status."""
        return EXIT_CODES[self.status]

    @property
    def text(self) -> str:
        """What a reader wants to see: the value, or what was found so far."""
        if isinstance(self.value, str):
            return self.value
        return self.partial if self.value is None else safe_repr(self.value)


class StepFailure(Struct, frozen=True, kw_only=True):
    """What stands in the place of a step's value where it failed and the others went on."""

    step: str  #: name of the agent
    status: Status
    message: str
    path: str = ""  #: of its run, if it was born


def safe_repr(value: Any) -> str:
    """A value for people to read; one whose repr fails costs nobody the rest."""
    try:
        return repr(value)
    except Exception as error:
        return f"(a {type(value).__qualname__} whose repr failed: {type(error).__name__})"


class AgentResult(Struct, frozen=True, kw_only=True):
    """What `run_agent` and `spawn_sub_agent` return, whatever became of the run; `exit_code` is 0 only with a result.

    `output` is the value, `error` says what went wrong. `stdout` and `stderr` hold the newest text of each, bounded.
    """

    exit_code: int
    status: Status
    output: Any = None
    error: ErrorInfo | None = None
    artifacts: tuple[Artifact, ...] = ()
    usage: Usage = NOTHING_USED  #: of the run and all below it
    session_id: str = ""  #: the id of the run
    stdout: str = ""
    stderr: str = ""
