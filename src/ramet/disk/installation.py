"""Installation of ramet: where it came from, and the command that adds one of its extras."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from ramet.core.errors import MissingExtra

#: The record that pip and uv leave beside a package that came from a wheel, a folder or a repository (PEP 610).
_ORIGIN = "direct_url.json"


def missing_extra(feature: str, extra: str) -> MissingExtra:
    """Return the error for a feature whose extra is not installed, with the command that installs it."""
    return MissingExtra(feature, extra, install_command(extra))


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation.

    If ramet was installed from a wheel or a clone, no package index need have it: the command then names the packages
    of the extra instead.
    """
    import importlib.metadata

    try:
        distribution = importlib.metadata.distribution("ramet")
    except importlib.metadata.PackageNotFoundError:
        return MissingExtra.command_from_index(extra)
    packages = packages_of_extra(extra, distribution.requires or ())
    if not packages or distribution.read_text(_ORIGIN) is None:
        return MissingExtra.command_from_index(extra)
    return shlex.join(["pip", "install", *packages])


def packages_of_extra(extra: str, requirements: Iterable[str]) -> list[str]:
    """Return what an extra requires, as pip takes it, from the requirements of a package's metadata."""
    parts = (requirement.partition(";") for requirement in requirements)
    return [name.strip() for name, _, marker in parts if marker.replace('"', "'").strip() == f"extra == '{extra}'"]
