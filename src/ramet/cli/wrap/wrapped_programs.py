"""The programs that `ramet wrap` starts: where each is, what it needs, and how it finds the model endpoint."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ramet.core.errors import InvalidValue

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
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64")  #: folders that every sandbox has
_PACKAGES: Final = "node_modules"
_ENV_LINE: Final = re.compile(rb"#!\s*/usr/bin/env\s+(?:-S\s+)?([A-Za-z0-9._-]+)")
_MAX_LINE: Final = 256


@dataclass(frozen=True, kw_only=True)
class WrappedProgram:
    """A program, and what its sandbox must have for it."""

    name: str  #: for people
    command: tuple[str, ...]  #: with its arguments, as it is started inside
    #: Variables, and files below its home. Both may name values of the endpoint: see `run_wrapped`.
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()  #: folders that it reads: where it is installed


def program_of(command: Sequence[str], folder: Path, environ: Mapping[str, str] = os.environ) -> WrappedProgram:
    """Return the program of a command line, which works in a folder.

    Raises InvalidValue if there is no such program.
    """
    name, *args = command
    found = shutil.which(str(folder / name) if "/" in name else name, path=environ.get("PATH", os.defpath))
    if found is None:
        raise InvalidValue("COMMAND", name, "the name of a program in PATH, or the path of one")
    path = Path(os.path.abspath(found))  # noqa: PTH100 - a link stays one: a program may look at its own name
    env = {each: environ[each] for each in TERMINAL_VARIABLES if each in environ} | MODEL_VARIABLES
    files = [path, *_interpreters(path, environ)]
    mounts = tuple(dict.fromkeys(each for file in files for each in _folders(file, folder)))
    if mounts:
        env["PATH"] = ":".join((*dict.fromkeys(str(each.parent) for each in files), "${path}"))
    return WrappedProgram(name=path.name, command=(str(path), *args), env=env, mounts=mounts)


def _interpreters(path: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the interpreter that `env` would find for a script, if the script asks for that."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as script:
        match = _ENV_LINE.match(script.readline(_MAX_LINE))
        if match and (found := shutil.which(match[1].decode(), path=environ.get("PATH", os.defpath))):
            yield Path(os.path.abspath(found))  # noqa: PTH100 - as above


def _folders(path: Path, folder: Path) -> Iterator[str]:
    """Yield the folders that a program is in, except those that its sandbox has anyway."""
    for each in (path, path.resolve()):
        if not any(each.is_relative_to(visible) for visible in (*_SYSTEM, folder)):
            yield str(_package_folder(each))


def _package_folder(path: Path) -> Path:
    """Return the folder with all packages of Node.js that a program is one of, else the folder that it is in."""
    packages = [each for each in path.parents if each.name == _PACKAGES]
    return packages[-1] if packages else path.parent
