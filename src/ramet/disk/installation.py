"""Installation of ramet: where it came from, and the commands that add packages to it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ramet.core.errors import MissingExtra

#: The record that pip and uv leave beside a package that came from a wheel, a folder or a repository (PEP 610).
_ORIGIN: Final = "direct_url.json"
#: Files that the tools which install programs leave in the environments of these programs.
_OF_PIPX: Final = "pipx_metadata.json"
_OF_VENV: Final = "pyvenv.cfg"
#: The file with which a distribution says that pip must not change its Python (PEP 668).
_OF_DISTRIBUTION: Final = "EXTERNALLY-MANAGED"


def missing_extra(feature: str, extra: str) -> MissingExtra:
    """Return the error for a feature whose extra is not installed, with the command that installs it."""
    return MissingExtra(feature, extra, install_command(extra))


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    If ramet was installed from a wheel or a clone, no package index need have it: the command then names the packages
    of the extra instead.
    """
    origin, requirements = _record()
    packages = packages_of_extra(extra, requirements)
    if _runner():
        return packages_command((), source=_source(origin, extra))
    # Without `ramet` for pipx, too: it is the name of the environment already.
    if packages and (origin is not None or _has(_OF_PIPX)):
        return packages_command(packages)
    return packages_command([f"ramet[{extra}]"])


def packages_command(packages: Sequence[str], *, source: str = "") -> str:
    """Return the command that adds packages to the environment of this process, also if no shell has activated it.

    Nothing is added to an environment that exists for one command: that command begins anew, with a `source` of ramet.
    """
    import shutil
    import sysconfig

    python = sys.executable or "python3"
    if runner := _runner():
        added = (word for each in packages for word in ("--with", each))
        return shlex.join([*runner.words, *added, runner.option, source or _source(_record().origin), "ramet"])
    if _has(_OF_PIPX):
        return shlex.join(["pipx", "inject", Path(sys.prefix).name, *packages])
    if sys.prefix == sys.base_prefix and Path(sysconfig.get_path("stdlib"), _OF_DISTRIBUTION).is_file():
        return shlex.join([python, "-m", "pip", "install", "--break-system-packages", *packages])
    if _is_of_uv() and not any(Path(sys.prefix).glob("lib/python*/site-packages/pip")):
        return shlex.join(["uv", "pip", "install", "--python", python, *packages])
    pip = shutil.which("pip")
    if pip is not None and Path(pip) == Path(python).with_name("pip"):
        return shlex.join(["pip", "install", *packages])
    return shlex.join([python, "-m", "pip", "install", *packages])


def packages_of_extra(extra: str, requirements: Iterable[str]) -> list[str]:
    """Return what an extra requires, as pip takes it, from the requirements of a package's metadata."""
    parts = (requirement.partition(";") for requirement in requirements)
    return [name.strip() for name, _, marker in parts if marker.replace('"', "'").strip() == f"extra == '{extra}'"]


class _Record(NamedTuple):
    """The metadata of the installed ramet; without an origin it came from an index, or is not installed."""

    origin: str | None
    requirements: Sequence[str]


class _Runner(NamedTuple):
    """A command that makes an environment for one command, and its option for the source of the program."""

    words: tuple[str, ...]
    option: str


def _record() -> _Record:
    import importlib.metadata

    try:
        distribution = importlib.metadata.distribution("ramet")
    except importlib.metadata.PackageNotFoundError:
        return _Record(None, ())
    return _Record(distribution.read_text(_ORIGIN), distribution.requires or ())


def _runner() -> _Runner | None:
    parent = Path(sys.prefix).parent.name
    if _has(_OF_PIPX):
        return None if parent == "venvs" else _Runner(("pipx", "run"), "--spec")
    return _Runner(("uvx",), "--from") if parent.startswith("archive-v") and _is_of_uv() else None


def _has(name: str) -> bool:
    return Path(sys.prefix, name).is_file()


def _is_of_uv() -> bool:
    try:
        text = Path(sys.prefix, _OF_VENV).read_text(errors="replace")
    except OSError:
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in text.splitlines())


def _source(origin: str | None, extra: str = "") -> str:
    """Return the wheel, folder or repository that ramet was installed from, as pip takes it, or its name."""
    import json
    from urllib.parse import unquote, urlsplit

    suffix = f"[{extra}]" if extra else ""
    try:
        record = json.loads(origin or "")
        if repository := record.get("vcs_info"):
            return f"ramet{suffix} @ {repository['vcs']}+{record['url']}@{repository['commit_id']}"
        address = urlsplit(record["url"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"ramet{suffix}"
    return f"{unquote(address.path)}{suffix}" if address.scheme == "file" else f"ramet{suffix} @ {record['url']}"
