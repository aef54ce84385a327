"""Data of a run's sandbox: code to send, folder, process, output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ramet.core.outcome import Artifact
from ramet.core.replay.run_replay import RunReplay
from ramet.isolation.contract import Sandbox
from ramet.isolation.workspace.run_dirs import RunFolder
from ramet.spawn.served_ports import ServedPorts
from ramet.spawn.tool_calls import ToolCallLedger
from ramet.wire.code.capsule import PackedCall
from ramet.wire.values.values import EncodedValue


class SandboxOutput(NamedTuple):
    """The output of a sandbox besides its value: files, the newest printed text, and the encoded value."""

    files: tuple[Artifact, ...] = ()
    stdout: str = ""
    stderr: str = ""
    value: EncodedValue | None = None


NO_OUTPUT = SandboxOutput()


@dataclass(eq=False, kw_only=True, slots=True)
class RunSandbox:
    """The sandbox of a run, with what outlives its process. Empty for a run that works in the host."""

    capsule: PackedCall | None = None  #: of a function
    #: Targets of the mounts of the operator's grant above it, or of its own, at that time (`ramet.isolation.mounts`).
    mount_roots: Mapping[str, str] = field(default_factory=dict)
    missing_variables: tuple[str, ...] = ()  #: variables whose values only a sandbox that continues has
    folder: RunFolder | None = None
    is_folder_lost: bool = False  #: the run continues in an empty folder, and its agent was not informed yet
    was_started: bool = False  #: its folder may hold files
    current: Sandbox | None = None  #: set while a process of it lives
    served_ports: ServedPorts = field(default_factory=ServedPorts)  #: its ports, while a sandbox of it is active
    can_outlive_kernel: bool = False  #: another kernel can continue with it
    replay: RunReplay | None = None  #: an ended kernel may have left the run active in a sandbox
    inherited_calls: ToolCallLedger | None = None  #: calls that its guest had been granted by that kernel
    output: SandboxOutput = NO_OUTPUT  #: output of its newest attempt
