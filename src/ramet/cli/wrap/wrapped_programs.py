"""The programs that `ramet wrap` starts: where each is, what it needs, and how it finds the endpoint for its models."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ramet.core.errors import InvalidValue
from ramet.host.external.locate import Location, find
from ramet.host.external.presets import PRESETS, Choice, choice_of
from ramet.host.external.tool_configuration import with_tree_tools

#: By these variables programs, and the SDKs of the providers, find the endpoint: see `run_wrapped`.
MODEL_VARIABLES: Final = {
    "ANTHROPIC_BASE_URL": "${anthropic_url}",
    "ANTHROPIC_API_KEY": "${key}",
    "OPENAI_BASE_URL": "${openai_url}/v1",
    "OPENAI_API_KEY": "${key}",
    "GOOGLE_GEMINI_BASE_URL": "${google_url}",
    "GEMINI_API_KEY": "${key}",
}
#: Variables of the user that describe the terminal; no others are passed on.
TERMINAL_VARIABLES: Final = ("TERM", "COLORTERM", "NO_COLOR")
#: Known programs, by the names of their executables.
_KNOWN: Final = {"claude": "claude-code", "codex": "codex", "gemini": "gemini", "opencode": "opencode"}
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64")  #: folders that every sandbox has


@dataclass(frozen=True, kw_only=True)
class WrappedProgram:
    """A program, and what its sandbox must have for it."""

    name: str  #: for people
    command: tuple[str, ...]  #: with its arguments, as it is started inside
    #: Variables, and files below its home. Both may name values of the endpoint: see `run_wrapped`.
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()  #: files and folders that it reads: where it is installed


def program_of(
    command: Sequence[str],
    folder: Path,
    *,
    model: str | None = None,
    with_tools: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> WrappedProgram:
    """Return the program of a command line, which works in a folder, perhaps with the tools of the tree.

    Raises InvalidValue if there is no such program, or if it cannot ask the model or take the tools.
    """
    name, *args = command
    location = _locate(name, folder, environ.get("PATH", os.defpath))
    env = {each: environ[each] for each in TERMINAL_VARIABLES if each in environ} | MODEL_VARIABLES
    known, files = _KNOWN.get(Path(name).name), {}
    if known is not None:
        choice = choice_of(known, PRESETS[known], model)
        env |= PRESETS[known].env(choice)
        files = PRESETS[known].files(choice, "ask") | _first_run_files(known, folder)
        files = with_tree_tools(known, files) if with_tools else files
        args = [*_first_arguments(known, choice), *args]
    elif model is not None:
        raise InvalidValue("--model", model, f"nothing for {name}: it is for {', '.join(_KNOWN)}")
    elif with_tools:
        raise InvalidValue("--with-tools", name, f"one of {', '.join(_KNOWN)}: how another takes tools is not known")
    return WrappedProgram(
        name=Path(name).name, command=(*location.command, *args), env=env, files=files, mounts=location.mounts
    )


def _locate(name: str, folder: Path, search_path: str) -> Location:
    """Return how a program is started inside, and what must be mounted for that."""
    wanted = str(folder / name) if "/" in name else name
    found = shutil.which(wanted, path=search_path)
    if found is None:
        raise InvalidValue("COMMAND", name, "the name of a program in PATH, or the path of one")
    path = Path(os.path.abspath(found))  # noqa: PTH100 - a link stays one: an environment of Python is found by it
    if all(_is_visible(each, folder) for each in (path, path.resolve())):
        return Location((str(path),), ())
    try:
        location = find(wanted, search_path)
    except InvalidValue as problem:
        raise InvalidValue("COMMAND", name, problem.accepted) from None
    assert location is not None, "found above"
    return location


def _is_visible(path: Path, folder: Path) -> bool:
    return any(path.is_relative_to(each) for each in (*_SYSTEM, folder))


def _first_run_files(known: str, folder: Path) -> dict[str, str]:
    """Return the files by which a program in a new home neither signs in nor asks what its sandbox answers.

    Claude Code would ask a server of its maker. It would ask the user whether to use the key, to trust the folder, and
    to let a model decide about calls, which costs a request for each.
    """
    if known != "claude-code":
        return {}
    state = {
        "hasCompletedOnboarding": True,
        "customApiKeyResponses": {"approved": ["${key_end}"], "rejected": []},
        "projects": {str(folder): {"hasTrustDialogAccepted": True}},
    }
    settings = {"permissions": {"defaultMode": "default", "disableAutoMode": "disable"}}
    return {".claude.json": json.dumps(state), ".claude/settings.json": json.dumps(settings)}


def _first_arguments(known: str, choice: Choice) -> list[str]:
    """Return the arguments that a program needs before those of the user."""
    if known == "codex":
        return ["--no-daemon"]  # Its server would listen at a path, which no sandbox allows.
    return ["-m", choice.name] if known == "gemini" and choice.name else []
