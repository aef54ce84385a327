"""A program of another maker as an agent, as data: how it is started, spoken to and configured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from ramet.core.arguments import KnownFields
from ramet.core.errors import Bug, InvalidValue
from ramet.core.policy import rights
from ramet.core.policy.policy import Policy
from ramet.wire.external_program import PERMISSION_MODES, PROTOCOLS, PermissionMode, Protocol

#: Programs that are known by name, see `ramet.host.external.presets`.
PRESETS = ("claude-code", "codex", "gemini", "opencode")
MAX_ENTRIES, MAX_TEXT = 200, 64 * 1024


@dataclass(frozen=True, kw_only=True)
class External(metaclass=KnownFields):
    """A program of another maker, to be run in a sandbox: a known one by name, or any other by its command.

    In `command`, `env` and `files`, `${anthropic_url}`, `${openai_url}` and `${google_url}` stand for the addresses at
    which the program asks its models, `${mcp_url}` for that of its tools to start agents, `${key}` for the key that it
    sends there, `${home}` for its home folder, and `${prompt}` for the prompt, unless it speaks the Agent Client
    Protocol. What is absent comes from the preset.

    Everything here is recorded, and visible in the sandbox: secrets belong into `Policy.secrets`. Raises InvalidValue.
    """

    preset: str = ""  #: one of `PRESETS`; empty: `command` says all
    command: Sequence[str] = ()  #: the program and its arguments; of a preset, absent: as it is found in PATH
    protocol: Protocol = "acp"  #: how it is spoken to: the Agent Client Protocol, "stream-json" or "text"
    models: Sequence[str] = ()  #: that it may ask, as `Policy.models`; with `Agent.model`, absent: that one
    env: Mapping[str, str] = field(default_factory=dict)  #: variables, besides those of every sandbox
    files: Mapping[str, str] = field(default_factory=dict)  #: texts of files, by path below its home
    mounts: Sequence[str] = ()  #: files and folders of the host that it needs, read-only, such as itself
    memory_mb: int | None = None  #: MiB without which it does not run; absent: the preset's, else 1024
    pids: int | None = None  #: processes and threads, likewise; absent: the preset's, else 256
    #: "ask": its questions for permission are in the inbox; "allow": its sandbox alone bounds it
    permission_mode: PermissionMode = "ask"

    def __post_init__(self) -> None:
        if self.preset and self.preset not in PRESETS:
            raise InvalidValue("external", self.preset, f"one of {', '.join(PRESETS)}, or ramet.External(command=[…])")
        if not self.preset and not self.command:
            raise InvalidValue("external.command", self.command, "a program and its arguments, or a preset")
        if self.protocol not in PROTOCOLS:
            raise InvalidValue("external.protocol", self.protocol, f"one of {', '.join(PROTOCOLS)}")
        if self.permission_mode not in PERMISSION_MODES:
            raise InvalidValue(
                "external.permission_mode", self.permission_mode, f"one of {', '.join(PERMISSION_MODES)}"
            )
        object.__setattr__(self, "command", _texts("external.command", self.command))
        object.__setattr__(self, "models", rights.models("external.models", self.models))
        object.__setattr__(self, "mounts", rights.mounts("external.mounts", self.mounts))
        object.__setattr__(self, "env", _mapping("external.env", self.env))
        object.__setattr__(self, "files", _mapping("external.files", self.files))
        for name in self.files:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.name:
                raise InvalidValue("external.files", name, "a path below the home of the program")
        Policy(memory_mb=self.memory_mb, pids=self.pids)  # Checks both.

    def as_data(self) -> dict[str, Any]:
        """Return the fields that are set, as data."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        defaults = External(command=("-",))
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value != getattr(defaults, name) and value != ()
        }


@dataclass(frozen=True)
class ExternalFunction:
    """The function of an agent that is a program of another maker: only a sandbox runs it."""

    external: External

    @property
    def __name__(self) -> str:
        return self.external.preset or PurePosixPath(self.external.command[0]).name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise Bug("a program of another maker was called in the host")


def as_external(value: object) -> External:
    """Return the definition of a program: one, the name of a preset, or a mapping of fields. Raises InvalidValue."""
    if isinstance(value, External):
        return value
    if isinstance(value, str):
        return External(preset=value)
    if isinstance(value, Mapping):
        return External(**value)
    raise InvalidValue("external", value, f"one of {', '.join(PRESETS)}, or ramet.External(command=[…])")


def _texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidValue(name, value, "a list of texts")
    texts = tuple(value)
    for each in texts:
        _check_text(name, each)
    if len(texts) > MAX_ENTRIES:
        raise InvalidValue(name, f"{len(texts)} entries", f"at most {MAX_ENTRIES}")
    return texts


def _mapping(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidValue(name, value, "a mapping of names to texts")
    _texts(name, value.keys())
    for each in value.values():
        _check_text(name, each)
    return dict(value)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or "\0" in value or len(value) > MAX_TEXT:
        raise InvalidValue(name, value, f"text of at most {MAX_TEXT} characters, without NUL")
