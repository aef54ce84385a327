"""What of the host's files a Python needs that has ramet and everything that is installed beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Runtime(NamedTuple):
    """An interpreter and its modules. The folders are seen at the same paths inside; some are links, seen as both."""

    python: str
    folders: tuple[str, ...]
    path: tuple[str, ...]  #: where modules are found that the interpreter would not look for by itself

    def program(self, name: str, *fds: int, options: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The command line that runs a module beside this one, wherever that is, with descriptors."""
        # Ours is the ramet that runs, whatever else is installed; folders of packages never come before the library.
        first = [folder for folder in self.path if not _holds_packages(folder)]
        last = [folder for folder in self.path if _holds_packages(folder)]
        path = f"import sys; sys.path[:0] = {first!r}; sys.path += {last!r}"
        call = f"from {__package__}.{name} import main; main({', '.join(map(str, fds))})"
        return (self.python, "-I", *bytecode(), *options, "-c", f"{path}; {call}")


def bytecode() -> tuple[str, ...]:
    """Options of an interpreter that is to find bytecode where this one does: else all that it imports is compiled."""
    return ("-X", f"pycache_prefix={sys.pycache_prefix}") if sys.pycache_prefix else ()


def find() -> Runtime:
    """The runtime of this process: its prefixes, its folders of packages, and sources that are linked into those.

    Of a linked folder only packages and modules are taken: it may be a project's own, with its keys and history.
    """
    sites = list(filter(_holds_packages, sys.path))
    ours = Path(__file__).parents[1]
    needed = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *_interpreters(), *sites, str(ours)]
    needed += [package for folder in _linked(sites) for package in _packages(folder)]
    needed += _editable()
    both = {str(each) for path in needed for each in (Path(path).absolute(), Path(path).resolve()) if each.exists()}
    return Runtime(sys.executable, tuple(_outermost(both)), tuple(dict.fromkeys((str(ours.parent), *sites))))


def _holds_packages(folder: str) -> bool:
    return Path(folder).name in ("site-packages", "dist-packages")


def _interpreters() -> Iterator[str]:
    """The prefixes of every link from our executable to the real one."""
    link = Path(sys.executable)
    for _ in range(40):
        yield str(link.parent.parent)
        if not link.is_symlink():
            return
        link = link.parent / link.readlink()


def _linked(sites: Iterable[str]) -> Iterator[str]:
    """Folders that .pth files add to the path."""
    for site in sites:
        for file in sorted(Path(site).glob("*.pth")):
            for line in file.read_text(errors="replace").splitlines():
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    yield str(Path(site, line.strip()))


def _editable() -> Iterator[str]:
    """Packages that setuptools finds by a table, not by a path."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            yield from getattr(module, "MAPPING", {}).values()


def _packages(folder: str) -> Iterator[str]:
    place = Path(folder)
    if not place.is_dir():
        return
    for each in place.iterdir():
        if (each / "__init__.py").is_file() or (each.suffix in (".py", ".so") and each.is_file()):
            yield str(each)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Without what is inside another; what every system has is mounted anyhow."""
    found: list[str] = []
    for path in sorted(paths):
        inside = [*found, "/usr"]
        if path != "/" and not any(path == outer or path.startswith(outer + os.sep) for outer in inside):
            found.append(path)
    return found
