"""What a kernel and a machine that keeps sandboxes for it say to each other, in frames of `ramet.wire.frames`.

Sandboxes have numbers, given by the kernel, never used twice on one machine. Bytes go in streams: `Data` of at most
MAX_PIECE, an empty body is the stream's end. A sender has WINDOW bytes of each stream to send, and more as it is given
`Credit`: whoever does not read slows down nobody but that stream. What breaks these rules is a ProtocolError, and the
end of the line. The kernel believes nothing that comes from there but about sandboxes on that machine.
`body` in a docstring is the frame's body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from ramet.core.errors import ProtocolError
from ramet.core.outcome import ErrorInfo
from ramet.core.policy.policy import Grant, Isolation
from ramet.isolation.contract import Image

VERSION = 2
MAX_PIECE = 64 * 1024  #: bytes of one `Data`
WINDOW = 256 * 1024  #: bytes of one stream that may be under way

#: Streams that every sandbox has. Others are numbered by who opens them: even by the kernel, odd by the machine.
CHANNEL, STDOUT, STDERR = 0, 1, 2
FIRST_OF_KERNEL, FIRST_OF_MACHINE = 4, 5

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class NodeMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", omit_defaults=True):
    """Anything that either says."""


# ---- both ways -----------------------------------------------------------------------------------------------------


class Data(NodeMessage, frozen=True, kw_only=True, tag="data"):
    """Body: the next bytes of a stream; empty is its end."""

    number: Number
    stream: Number


class Credit(NodeMessage, frozen=True, kw_only=True, tag="credit"):
    """So many bytes more of a stream may be sent: they were read here."""

    number: Number
    stream: Number
    size: Number


# ---- from the kernel -----------------------------------------------------------------------------------------------


class Put(NodeMessage, frozen=True, kw_only=True, tag="put"):
    """Have the tar that comes in a stream at a folder, before the sandbox starts or while it lives.

    `root` is a path below one that the machine keeps for this. What is in the folder and not in the tar goes; a member
    "." is no folder but a file at that path. Answered by whether it is there now: a path that the machine does not keep
    is as its image has it, and the stream is not read.
    """

    ask: Number
    number: Number
    stream: Number
    root: str


class Link(NodeMessage, frozen=True, kw_only=True, tag="link"):
    """Have at a path below one that the machine keeps what its image has at another; answered once it is there."""

    ask: Number
    root: str
    to: str


class Start(NodeMessage, frozen=True, kw_only=True, tag="start"):
    """Start a sandbox; answered by `Started` or `Refused`. Fields as in `SandboxSpec`, paths as on the kernel's host.

    What it is given of files, its workspace included, was `Put` before.
    """

    number: Number
    run: str
    grant: Grant
    workspace: str
    cwd: str | None = None
    image: Image = "bare"
    entry: str = "ramet.guest.__main__:main"
    env: Mapping[str, str] = {}
    proxied: bool = False  #: connections to the host's proxy come as streams that the machine opens
    shelf: str | None = None


class Adopt(NodeMessage, frozen=True, kw_only=True, tag="adopt"):
    """Go on with a sandbox that another kernel had started here, on another line; answered once it is this line's.

    What is not answered on its channel comes again, and its end does; streams to a proxy have broken. Answered with
    Gone where there is none, or it cannot go on without that kernel.
    """

    ask: Number
    number: Number


class Signal(NodeMessage, frozen=True, kw_only=True, tag="signal"):
    """A signal to its main process; SIGKILL to all of it."""

    number: Number
    signal: Number


class Measure(NodeMessage, frozen=True, kw_only=True, tag="measure"):
    """What does it use? Answered with a `Metrics` as a list."""

    ask: Number
    number: Number


class Run(NodeMessage, frozen=True, kw_only=True, tag="run"):
    """Run a command beside it; answered with its code and the size of its stdout. Body of the answer: both outputs."""

    ask: Number
    number: Number
    argv: tuple[str, ...]
    timeout_s: float
    max_bytes: Number


class Fetch(NodeMessage, frozen=True, kw_only=True, tag="fetch"):
    """What changed in its workspace since it was fetched last, as a tar in a stream.

    Answered, after the stream's end, with the first few names that cannot travel. Body of the answer: the paths,
    relative to the workspace, that have gone, a NUL after each.
    """

    ask: Number
    number: Number
    stream: Number


class Forget(NodeMessage, frozen=True, kw_only=True, tag="forget"):
    """End a sandbox and let go of all that it had, its workspace too; answered when nothing is left."""

    ask: Number
    number: Number


class Leave(NodeMessage, frozen=True, kw_only=True, tag="leave"):
    """End everything, and the machine's own program."""


# ---- from the machine ----------------------------------------------------------------------------------------------


class Hello(NodeMessage, frozen=True, kw_only=True, tag="hello"):
    """The first word: who is there, and what `local` found there to keep a process in with."""

    version: int
    python: str
    level: Isolation
    mechanisms: Mapping[str, bool]
    missing: tuple[str, ...] = ()
    remedy: str = ""
    kept: tuple[Number, ...] = ()  #: sandboxes that it has from lines before this one
    last: Number = 0  #: the highest number that it ever had


class Started(NodeMessage, frozen=True, kw_only=True, tag="started"):
    """All gates are shut; its entry point is called."""

    number: Number


class Refused(NodeMessage, frozen=True, kw_only=True, tag="refused"):
    """It was not started, and nothing of it is left. `error` and `fields` as in `ramet.wire.error_codec`."""

    number: Number
    error: ErrorInfo
    fields: Mapping[str, Any] = {}


class Ended(NodeMessage, frozen=True, kw_only=True, tag="ended"):
    """No process of it is left. Fields as in `Exit`."""

    number: Number
    code: int
    reason: str
    detail: str = ""
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0


class Connected(NodeMessage, frozen=True, kw_only=True, tag="connected"):
    """Somebody inside connects to the proxy: what is said there comes in this stream, and goes back in it."""

    number: Number
    stream: Number


class Threshold(NodeMessage, frozen=True, kw_only=True, tag="threshold"):
    """It comes near a limit: see `OnThreshold`."""

    number: Number
    resource: str
    used: float
    limit: float


class Answer(NodeMessage, frozen=True, kw_only=True, tag="answer"):
    """To what was asked: a value, or an error as in `ramet.wire.error_codec`."""

    ask: Number
    value: Any = None
    error: ErrorInfo | None = None
    fields: Mapping[str, Any] = {}


FromKernel = Data | Credit | Put | Link | Start | Adopt | Signal | Measure | Run | Fetch | Forget | Leave
FromMachine = Data | Credit | Hello | Started | Refused | Ended | Connected | Threshold | Answer

_encoder = msgspec.json.Encoder()
_from_kernel = msgspec.json.Decoder(FromKernel)
_from_machine = msgspec.json.Decoder(FromMachine)


def encode(word: NodeMessage) -> bytes:
    """The control part of a frame."""
    return _encoder.encode(word)


def from_kernel(control: bytes) -> FromKernel:
    """What a kernel says. Raises ProtocolError."""
    word: FromKernel = _decoded(_from_kernel, control)
    return word


def from_machine(control: bytes) -> FromMachine:
    """What a machine says. Raises ProtocolError."""
    word: FromMachine = _decoded(_from_machine, control)
    return word


def _decoded(decoder: msgspec.json.Decoder[Any], control: bytes) -> Any:
    try:
        return decoder.decode(control)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a word of this line: {error}") from None
