"""The files that a guest needs in a container in addition to Python: ramet and its imports, from this interpreter."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path, PurePosixPath
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ramet.core.errors import InvalidValue

Kind = Literal["bare", "llm"]  #: the images of zygotes: for functions only, or also for complete loops of model agents
#: The other distributions that each kind needs, with all their requirements. Both kinds have ramet's own code.
ROOTS: Mapping[Kind, tuple[str, ...]] = {"bare": ("cloudpickle", "msgspec"), "llm": ("ramet",)}
#: Its folder in a container, with nothing else in it. Guests may search it for modules (`isolation.runtime`).
LIB = "/opt/ramet/site-packages"
#: The version of Python of extensions and bytecode: an interpreter of another version cannot use them.
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_CACHE = "__pycache__"
_OURS = "ramet"
#: The metadata files of a distribution that programs read, and the licences; others contain paths of this machine.
_NOTES = ("METADATA", "entry_points.txt", "top_level.txt")
_LICENCES = ("LICEN", "COPYING", "NOTICE", "AUTHORS")


def own_platform() -> str:
    """Return the platform of this interpreter's extensions, in the notation of images."""
    machine = platform.machine().lower()
    return f"{platform.system().lower()}/{_MACHINES.get(machine, machine)}"


def runtime_files(kind: Kind) -> dict[PurePosixPath, Path]:
    """Return each file below LIB, by its path there, in order. Waits for the disk.

    The files are those of the distributions' own lists (RECORD) that exist. The files of ramet are taken from the
    folder from which this process imports them. Raises InvalidValue for a distribution that is missing, has no list, or
    is installed as a link to sources.
    """
    package_root = Path(__file__).parents[3]
    files = {PurePosixPath(_OURS, path.relative_to(package_root)): path for path in _sources(package_root)}
    for each in _iter_distributions(ROOTS[kind]):
        files |= _files(each)
    return {place: files[place] for place in sorted(files)}


def content_digest(kind: Kind, files: Mapping[PurePosixPath, Path]) -> str:
    """Return one digest of all files, for this version of Python and this platform. Waits for the disk."""
    hasher = hashlib.sha256(f"ramet runtime 1\n{kind}\npython {PYTHON}\n{own_platform()}\n".encode())
    for path, file in files.items():
        hasher.update(f"{hashlib.sha256(file.read_bytes()).hexdigest()} {path}\n".encode())
    return hasher.hexdigest()


def _sources(home: Path) -> Iterator[Path]:
    for path in home.rglob("*"):
        parts = path.relative_to(home).parts
        if path.is_file() and _CACHE not in parts and not any(each.startswith(".") for each in parts):
            yield path


def _iter_distributions(roots: tuple[str, ...]) -> Iterator[Distribution]:
    """Yield the roots and everything that they require here, including requested extras; ramet itself is skipped."""
    visited: set[tuple[str, str]] = set()
    names: set[str] = set()
    waiting = [Requirement(each) for each in roots]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        distribution = _distribution(requirement.name)
        if name not in names and name != _OURS:
            yield distribution
        names.add(name)
        for extra in {"", *requirement.extras} - {each for of, each in visited if of == name}:
            visited.add((name, extra))
            for line in distribution.requires or ():
                dependency = Requirement(line)
                if dependency.marker is None or dependency.marker.evaluate({"extra": extra}):
                    waiting.append(dependency)


def _distribution(name: str) -> Distribution:
    try:
        return importlib.metadata.distribution(name)
    except PackageNotFoundError:
        raise InvalidValue("distribution", name, "one that is installed, since ramet's guests import it") from None


def _files(distribution: Distribution) -> dict[PurePosixPath, Path]:
    """Return the importable files of a distribution, and the metadata files that a program may read."""
    name, paths = distribution.metadata["Name"], distribution.files
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if paths is None or origin.get("dir_info", {}).get("editable"):
        accepted = "one that was installed from a wheel, with a list of its files"
        raise InvalidValue("distribution", name, accepted)
    files = {}
    for each in paths:
        path = PurePosixPath(each)
        file = Path(str(distribution.locate_file(each)))
        if _is_wanted(path) and file.is_file():
            files[path] = file
    return files


def _is_wanted(place: PurePosixPath) -> bool:
    if ".." in place.parts or place.is_absolute() or _CACHE in place.parts:
        return False
    if place.parts[0].endswith(".dist-info"):
        return place.name in _NOTES or place.name.upper().startswith(_LICENCES)
    return not (len(place.parts) == 1 and place.suffix == ".pth")
