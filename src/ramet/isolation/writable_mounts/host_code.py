"""The files of the host from which this process imports modules or starts programs: no run may write to them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from ramet.core.errors import InvalidValue

_ACCEPTED = "a folder of the host that a run may write to"


class HostCode(NamedTuple):
    """Real paths with code of the host."""

    installed: tuple[str, ...]  #: with everything below: Python, its packages, ramet
    searched: tuple[str, ...]  #: folders that this process searches for modules and programs, as they are written


def host_code(runtime: Iterable[str] = ()) -> HostCode:
    """Return the code of this process; `runtime` are further folders that its Python needs."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, str(Path(__file__).parents[2]))
    installed = {os.path.realpath(each) for each in (*prefixes, *runtime)} - {"/"}
    searched = (*sys.path, *os.environ.get("PATH", os.defpath).split(os.pathsep), str(Path(sys.executable).parent))
    return HostCode(tuple(sorted(installed)), tuple(dict.fromkeys(map(os.path.abspath, searched))))


def check_host_code(mount: str, source: str, code: HostCode) -> None:
    """Raise InvalidValue if a run that writes to a folder could change what this process imports or starts."""
    tuple(code_in(mount, source, code))


def code_in(mount: str, source: str, code: HostCode) -> Iterator[str]:
    """Yield the paths below `source` that must be read-only.

    Raises InvalidValue, which names the mount, where that is not enough: the folder itself is searched, or lies in
    installed code; a searched folder in it does not exist yet, or is behind a symbolic link.
    """
    for each in code.installed:
        if PurePath(source).is_relative_to(each):
            raise InvalidValue("writable_mounts", mount, f"{_ACCEPTED}: {each} holds the Python of this process")
        if PurePath(each).is_relative_to(source):
            yield os.path.relpath(each, source)
    for each in code.searched:
        for place in _places(each):
            if place != source and not PurePath(place).is_relative_to(source):
                continue
            if any(PurePath(place).is_relative_to(other) for other in code.installed):
                break
            if place == os.path.realpath(each) == source:
                remedy = "; Python with the option -P does not search the current folder"
                reason = f"this process searches it for modules or programs (sys.path, PATH){remedy}"
                raise InvalidValue("writable_mounts", mount, f"{_ACCEPTED}: {reason}")
            if place != source and (os.path.islink(place) or not os.path.lexists(place)):  # noqa: PTH114 - a text
                reason = f"this process searches {each} (sys.path, PATH), and a run could make or change {place}"
                raise InvalidValue("writable_mounts", mount, f"{_ACCEPTED}: {reason}")
            if place == os.path.realpath(each):
                yield os.path.relpath(place, source)


def _places(path: str) -> Sequence[str]:
    """Return the place of each part of a path: its real folder with its name, which may be a link itself."""
    parts = PurePath(path)
    prefixes = [str(each) for each in (*reversed(parts.parents), parts)]
    return [os.path.join(os.path.realpath(os.path.dirname(each)), os.path.basename(each)) for each in prefixes]  # noqa: PTH118, PTH119, PTH120
