"""The required packages of bundles: parsed strictly, installed once, and stored by the digest of the requirements.

A file may contain packages, versions, markers and hashes, and nothing else. An option, an address or a path would let
the uploader of a bundle choose the source of an installation. A source package would let the uploader run code in the
server. Therefore only wheels are installed, unless the operator's own arguments allow other packages.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.concurrency import processes
from ramet.concurrency.clock import Clock
from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.pipes import Capture
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, RametError
from ramet.services.packaging import atomic_dirs

MAX_SIZE = 256 * 1024  #: bytes of a file
_LINE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*"  # the name
    r" ?(\[[A-Za-z0-9._, -]*\])?"  # extras
    r" ?(\(?(===|==|~=|!=|<=|>=|<|>)[A-Za-z0-9._*+!,<>=~ -]*\)?)?"  # versions
    r" ?(;[A-Za-z0-9._*+!<>=~ ()'\"-]*)?"  # when
)
_HASH = re.compile(r"sha(256|384|512):[0-9a-f]+")


@dataclass(frozen=True, kw_only=True)
class Installs:
    """The operator's settings for the installation of requirements."""

    pip_args: Sequence[str] = ()  #: e.g. ("--no-index", "-f", "wheels"); they follow our arguments and override them
    timeout_s: float = 600.0


class InstallFailed(RametError):
    """Requirements that could not be installed; no files of them are left. `output` is the end of pip's output."""

    def __init__(self, reason: str, output: str) -> None:
        self.reason, self.output = reason, output
        super().__init__(f"the requirements could not be installed ({reason}):\n{output}".rstrip(":\n"))


def parse_requirements(data: bytes, location: str) -> tuple[str, ...]:
    """Return the requirements of a file.

    Raises InvalidValue for a line that is more than a package and its versions.
    """
    if len(data) > MAX_SIZE:
        raise InvalidValue(location, f"{len(data)} bytes", f"at most {MAX_SIZE}")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidValue(location, data[:80], "text in UTF-8") from None
    lines = re.sub(r"\\\r?\n", " ", text).splitlines()
    packages = [" ".join(re.sub(r"(^|\s)#.*", "", line).split()) for line in lines]
    for line in filter(None, packages):
        head, *hashes = line.split(" --hash=")
        # Wherever a word begins with a dash, pip takes the rest of the line for options.
        if not _LINE.fullmatch(head) or " -" in head or not all(map(_HASH.fullmatch, hashes)):
            raise InvalidValue(
                location, line, "packages with versions, markers and hashes; no options, addresses or paths"
            )
    return tuple(filter(None, packages))


class Packages:
    """The installed packages: one importable folder `<folder>/<digest>/` for each set of requirements."""

    def __init__(self, folder: Path, installs: Installs | None, clock: Clock) -> None:
        self._folder, self._installs, self._clock = folder, installs, clock
        self._gates: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def open(self) -> None:
        """Create the folder, and remove the unfinished drafts of an earlier process."""
        atomic_dirs.open_place(self._folder)

    def place(self, requirements: Iterable[str]) -> Path:
        """Return the folder of these requirements for this version of Python. Their order does not matter."""
        text = "\n".join((f"python {sys.version_info[0]}.{sys.version_info[1]}", *sorted(set(requirements))))
        return self._folder / hashlib.sha256(text.encode()).hexdigest()

    def refuse(self, requirements: Sequence[str], bundle: str) -> None:
        """Raise InvalidValue for requirements if the operator allows none."""
        if requirements and self._installs is None:
            raise InvalidValue(
                f"bundle {bundle}", requirements, "no requirements.txt: this server does not install packages"
            )

    async def install(self, requirements: Sequence[str]) -> Path:
        """Install requirements once, and return their folder. Raises InstallFailed, and leaves no files then."""
        target = self.place(requirements)
        # A concurrent request for the same set waits, and then finds it installed.
        async with self._gates.setdefault(target.name, asyncio.Lock()):
            if not target.is_dir():
                await self._fill(target, sorted(set(requirements)))
        return target

    async def _fill(self, place: Path, requirements: Sequence[str]) -> None:
        assert self._installs is not None, "refused before"
        with atomic_dirs.draft(self._folder) as draft:
            output = Capture(head=0, tail=4096)
            argv = [
                sys.executable, "-m", "pip", "install", "--target", str(draft), "--only-binary", ":all:", "--no-input",
                "--no-compile", "--disable-pip-version-check", "--root-user-action=ignore", "--progress-bar=off",
                *self._installs.pip_args, "--requirement", "/dev/stdin",
            ]  # fmt: skip
            try:
                ended = await processes.run(
                    argv,
                    clock=self._clock,
                    timeout_s=self._installs.timeout_s,
                    cwd=self._folder,
                    env=processes.environment(),
                    stdout=output,
                    stdin="".join(f"{line}\n" for line in requirements).encode(),
                )
            except OSError as problem:
                raise InstallFailed(f"pip could not be started: {problem.strerror}", "") from None
            if ended.reason == "timeout":
                raise InstallFailed(f"not done within {self._installs.timeout_s:g} s", _last_lines(output))
            if ended.code:
                raise InstallFailed(f"pip's exit code is {ended.code}", _last_lines(output))
            await run_shielded(in_thread(lambda: atomic_dirs.publish(draft, place), name="ramet-packages"))


def _last_lines(output: Capture) -> str:
    lines = output.data().decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-10:])
