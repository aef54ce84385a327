"""`PackageCommand`: a command of a server that names a package of a registry, which is installed beforehand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from ramet.core.errors import InvalidValue
from ramet.core.mcp.server_entry import McpServer

Registry = Literal["npm", "pypi"]
#: Programs that fetch a package and run it, and are not supported: what to write in place of each.
_REFUSED: Final = {"bunx": "npx", "pnpx": "npx", "pipx": "uvx"}
#: The same with a first argument that makes them one.
_REFUSED_WORDS: Final = {
    ("bun", "x"): "npx",
    ("pnpm", "dlx"): "npx",
    ("yarn", "dlx"): "npx",
    ("npm", "exec"): "npx",
    ("npm", "x"): "npx",
    ("uv", "tool"): "uvx",
}
_QUIET: Final = ("-q", "--quiet")
_MAX: Final = 214  #: characters of a name
NPM_NAME: Final = r"(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-zA-Z0-9~-][a-zA-Z0-9._~-]*"
_NPM: Final = re.compile(rf"({NPM_NAME})(?:@([A-Za-z0-9^~<>=*][A-Za-z0-9.^~<>=*+-]*))?\Z")
PYPI_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION: Final = r"[A-Za-z0-9][A-Za-z0-9.!+*-]*"
_BOUND: Final = rf"(?:==|>=|<=|~=|!=|<|>){_VERSION}"
_PYPI: Final = re.compile(
    rf"({PYPI_NAME})(\[{PYPI_NAME}(?:,{PYPI_NAME})*\])?(?:@({_VERSION})|({_BOUND}(?:,{_BOUND})*))?\Z"
)
_EXECUTABLE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\Z")


class PackageCommand(NamedTuple):
    """A command of `npx` or `uvx`: a package, one of its programs, and the arguments of that program."""

    registry: Registry
    package: str  #: its name, without extras and version
    requirement: str  #: its name, and which versions, as the clients of the registry read it
    executable: str  #: one of the package's programs; "": the only one, or the one with the package's name
    args: tuple[str, ...]
    others: tuple[str, ...] = ()  #: requirements of further packages (`uvx --with`)

    @property
    def key(self) -> str:
        """Return the name of the package in a lock file: commands with the same key run the same files."""
        return " ".join((f"{self.registry}:{self.requirement}", *self.others))


def package_command(server: McpServer) -> PackageCommand | None:
    """Return the package that a server's command would fetch, or None if it names a program.

    Raises InvalidValue for a command that fetches a package in a way that cannot be installed beforehand.
    """
    if not server.command:
        return None
    program = server.command.rpartition("/")[2]
    word = server.args[0] if server.args else ""
    other = _REFUSED.get(program) or _REFUSED_WORDS.get((program, word))
    if other is not None:
        shown = program if program in _REFUSED else f"{program} {word}"
        raise InvalidValue(
            f"mcp.{server.name}.command", shown, f"{other} for a package, or a program that is installed"
        )
    if program == "npx":
        return _npx(server)
    return _uvx(server) if program == "uvx" else None


def _npx(server: McpServer) -> PackageCommand:
    words = _Words(server, quiet=("-y", "--yes", *_QUIET), package=("-p", "--package"))
    requirement, executable = words.package, ""
    if requirement:
        executable = _matching(words, _EXECUTABLE, words.take("the name of a program"), "a program of the package")[0]
    else:
        requirement = words.take("a package")
    name = _matching(words, _NPM, requirement, "a package of npm, such as name or @scope/name@1.2.3")[1]
    return PackageCommand("npm", name, requirement, executable, words.rest)


def _uvx(server: McpServer) -> PackageCommand:
    words = _Words(server, quiet=_QUIET, package=("--from",), other=("--with",))
    text = words.package
    name, requirement = _pypi(words, text or words.take("a package"))
    executable = words.take("the name of a program") if text else name
    executable = _matching(words, _EXECUTABLE, executable, "a program of the package")[0]
    others = tuple(sorted({_pypi(words, each)[1] for each in words.others}))
    return PackageCommand("pypi", name, requirement, executable, words.rest, others)


def _pypi(words: _Words, text: str) -> tuple[str, str]:
    """Return the name of a package, and its requirement as pip reads it. Raises InvalidValue."""
    accepted = "a package of PyPI, such as name, name@1.2.3 or name[extra]==1.2.3"
    name, extras, version, bounds = _matching(words, _PYPI, text, accepted).groups()
    if version not in (None, "latest"):
        bounds = f"=={version}"
    return name, f"{name}{extras or ''}{bounds or ''}"


class _Words:
    """The words of a command after its program: options of the client, a package, and the rest."""

    def __init__(
        self, server: McpServer, *, quiet: Sequence[str], package: Sequence[str], other: Sequence[str] = ()
    ) -> None:
        self.server, self.package = server, ""
        self.others: list[str] = []
        self._words = list(server.args)
        while self._words and self._words[0].startswith("-"):
            option, has_value, value = self._words.pop(0).partition("=")
            if option == "--" and not has_value:
                break
            if option in package and not self.package:
                self.package = value if has_value else self.take("a package")
            elif option in other:
                self.others.append(value if has_value else self.take("a package"))
            elif has_value or option not in quiet:
                known = ", ".join((*quiet, *package, *other))
                raise self.refusal(option, f"no other options than {known}, before its package")

    @property
    def rest(self) -> tuple[str, ...]:
        """Return the arguments of the program."""
        return tuple(self._words)

    def take(self, what: str) -> str:
        """Return the next word. Raises InvalidValue if there is none."""
        if not self._words:
            raise self.refusal(" ".join(self.server.args), f"{what} after {self.server.command}")
        return self._words.pop(0)

    def refusal(self, value: str, accepted: str) -> InvalidValue:
        return InvalidValue(f"mcp.{self.server.name}.args", value, accepted)


def _matching(words: _Words, pattern: re.Pattern[str], text: str, accepted: str) -> re.Match[str]:
    found = pattern.match(text)
    if found is None or len(text) > _MAX:
        raise words.refusal(text, f"{accepted}; no address, file or folder")
    return found
