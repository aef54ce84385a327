"""The protocol between a kernel and a machine that keeps sandboxes for it, in frames of `ramet.wire.frames`.

Sandboxes have numbers, which the kernel assigns and never uses twice on one machine. Bytes are sent in streams: `Data`
of at most MAX_PIECE; an empty body is the stream's end. A sender may send WINDOW bytes of each stream, and more for
each `Credit`: a slow reader slows down only that stream. A violation of these rules is a ProtocolError, and ends the
line. The kernel trusts a machine's messages only about sandboxes on that machine. `body` in a docstring is the frame's
body.
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

FREEZE = "freeze"  #: the mechanism of a machine that accepts `Freeze` and `Thaw`

#: Streams that every sandbox has. The side that opens another stream numbers it: the kernel even, the machine odd.
CHANNEL, STDOUT, STDERR = 0, 1, 2
FIRST_OF_KERNEL, FIRST_OF_MACHINE = 4, 5

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class NodeMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", omit_defaults=True):
    """A message of either side."""


# ---- both ways -----------------------------------------------------------------------------------------------------


class Data(NodeMessage, frozen=True, kw_only=True, tag="data"):
    """The next bytes of a stream, as the body; an empty body is the stream's end."""

    number: Number
    stream: Number


class Credit(NodeMessage, frozen=True, kw_only=True, tag="credit"):
    """A permission to send `size` more bytes of a stream, because as many bytes were read."""

    number: Number
    stream: Number
    size: Number


# ---- from the kernel -----------------------------------------------------------------------------------------------


class Put(NodeMessage, frozen=True, kw_only=True, tag="put"):
    """Store the tar of a stream as a folder, before the sandbox starts or while it runs.

    `root` is a path below a folder that the machine keeps for mounts. Files in the folder that are not in the tar are
    removed; a member "." is a file at that path instead of a folder. The answer is whether the machine stored it. A
    path outside the machine's folders stays as its image has it, and the stream is not read.
    """

    ask: Number
    number: Number
    stream: Number
    root: str


class Link(NodeMessage, frozen=True, kw_only=True, tag="link"):
    """Create a link at `root`, below a folder that the machine keeps, to the image's path `to`.

    Answered once it exists.
    """

    ask: Number
    root: str
    to: str


class Start(NodeMessage, frozen=True, kw_only=True, tag="start"):
    """Start a sandbox; answered by `Started` or `Refused`.

    Fields as in `SandboxSpec`, paths as on the kernel's host. The sandbox's files, including its workspace, were sent
    by `Put` before.
    """

    number: Number
    run: str
    grant: Grant
    workspace: str
    cwd: str | None = None
    image: Image = "bare"
    entry: str = "ramet.guest.__main__:main"
    env: Mapping[str, str] = {}
    proxied: bool = False  #: connections to the host's proxy are streams that the machine opens
    import_dir: str | None = msgspec.field(default=None, name="shelf")  #: as machines of this version know it


class Adopt(NodeMessage, frozen=True, kw_only=True, tag="adopt"):
    """Adopt a sandbox that another kernel started here over another line; answered once it belongs to this line.

    The unanswered messages of its channel are sent again, and so is its end. Its streams to a proxy have broken. A
    frozen sandbox is thawed. The answer is Gone if the sandbox does not exist, or cannot continue without its former
    kernel.
    """

    ask: Number
    number: Number


class Signal(NodeMessage, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to the main process of a sandbox; SIGKILL goes to all its processes."""

    number: Number
    signal: Number


class Measure(NodeMessage, frozen=True, kw_only=True, tag="measure"):
    """Measure a sandbox. The answer is a `Metrics` as a list."""

    ask: Number
    number: Number


class Run(NodeMessage, frozen=True, kw_only=True, tag="run"):
    """Run a command inside a sandbox.

    The answer is the exit code and the size of stdout. Body of the answer: stdout, then stderr.
    """

    ask: Number
    number: Number
    argv: tuple[str, ...]
    timeout_s: float
    max_bytes: Number


class Freeze(NodeMessage, frozen=True, kw_only=True, tag="freeze"):
    """Freeze a sandbox: see `FreezableSandbox`. The answer is whether its processes stand still.

    Sent only to a machine that names `FREEZE` among its mechanisms.
    """

    ask: Number
    number: Number


class Thaw(NodeMessage, frozen=True, kw_only=True, tag="thaw"):
    """Let a frozen sandbox go on; answered when it does."""

    ask: Number
    number: Number


class Fetch(NodeMessage, frozen=True, kw_only=True, tag="fetch"):
    """Send the changes of a sandbox's workspace since the last fetch, as a tar in a stream.

    Answered after the stream's end, with the first few names that cannot be sent. Body of the answer: the removed
    paths, relative to the workspace, a NUL after each.
    """

    ask: Number
    number: Number
    stream: Number


class Forget(NodeMessage, frozen=True, kw_only=True, tag="forget"):
    """End a sandbox and remove all its data, including its workspace; answered when nothing is left."""

    ask: Number
    number: Number


class Leave(NodeMessage, frozen=True, kw_only=True, tag="leave"):
    """End all sandboxes, and the machine's own program."""


# ---- from the machine ----------------------------------------------------------------------------------------------


class Hello(NodeMessage, frozen=True, kw_only=True, tag="hello"):
    """The first message of a machine: its identity, and the isolation mechanisms that `local` found there."""

    version: int
    python: str
    level: Isolation
    mechanisms: Mapping[str, bool]
    missing: tuple[str, ...] = ()
    remedy: str = ""
    kept: tuple[Number, ...] = ()  #: sandboxes that it keeps from earlier lines
    last: Number = 0  #: the highest number ever used there


class Started(NodeMessage, frozen=True, kw_only=True, tag="started"):
    """The sandbox is confined completely, and its entry point is called."""

    number: Number


class Refused(NodeMessage, frozen=True, kw_only=True, tag="refused"):
    """The sandbox was not started, and nothing of it is left.

    `error` and `fields` as in `ramet.wire.error_codec`.
    """

    number: Number
    error: ErrorInfo
    fields: Mapping[str, Any] = {}


class Ended(NodeMessage, frozen=True, kw_only=True, tag="ended"):
    """The end of a sandbox: none of its processes is left. Fields as in `Exit`."""

    number: Number
    code: int
    reason: str
    detail: str = ""
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0


class Connected(NodeMessage, frozen=True, kw_only=True, tag="connected"):
    """A process in the sandbox connects to the proxy; this stream carries both directions."""

    number: Number
    stream: Number


class Threshold(NodeMessage, frozen=True, kw_only=True, tag="threshold"):
    """The sandbox approaches a limit: see `OnThreshold`."""

    number: Number
    resource: str
    used: float
    limit: float


class Answer(NodeMessage, frozen=True, kw_only=True, tag="answer"):
    """The answer to a request: a value, or an error as in `ramet.wire.error_codec`."""

    ask: Number
    value: Any = None
    error: ErrorInfo | None = None
    fields: Mapping[str, Any] = {}


FromKernel = (
    Data | Credit | Put | Link | Start | Adopt | Signal | Measure | Run | Freeze | Thaw | Fetch | Forget | Leave
)
FromMachine = Data | Credit | Hello | Started | Refused | Ended | Connected | Threshold | Answer

_encoder = msgspec.json.Encoder()
_from_kernel = msgspec.json.Decoder(FromKernel)
_from_machine = msgspec.json.Decoder(FromMachine)


def encode(message: NodeMessage) -> bytes:
    """Encode a message as the control part of a frame."""
    return _encoder.encode(message)


def from_kernel(control: bytes) -> FromKernel:
    """Decode a message of a kernel. Raises ProtocolError."""
    message: FromKernel = _decode(_from_kernel, control)
    return message


def from_machine(control: bytes) -> FromMachine:
    """Decode a message of a machine. Raises ProtocolError."""
    message: FromMachine = _decode(_from_machine, control)
    return message


def _decode(decoder: msgspec.json.Decoder[Any], control: bytes) -> Any:
    try:
        return decoder.decode(control)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a message of this protocol: {error}") from None
