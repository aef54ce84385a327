"""The files of the host that a Python needs which has ramet and every other installed package."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Runtime(NamedTuple):
    """An interpreter and its modules.

    The folders have the same paths inside. A folder that is a link is visible at both paths.
    """

    python: str
    folders: tuple[str, ...]
    path: tuple[str, ...]  #: folders of modules that the interpreter would not search by itself

    def program(self, name: str, *fds: int, options: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the command line that runs a module of this package, wherever the package is, with descriptors."""
        # The module is of the ramet that runs, even if another is installed. Package folders never precede the library.
        first = [folder for folder in self.path if not _holds_packages(folder)]
        last = [folder for folder in self.path if _holds_packages(folder)]
        path = f"import sys; sys.path[:0] = {first!r}; sys.path += {last!r}"
        call = f"from {__package__}.{name} import main; main({', '.join(map(str, fds))})"
        return (self.python, "-I", *bytecode(), *options, "-c", f"{path}; {call}")


def bytecode() -> tuple[str, ...]:
    """Return interpreter options that select the bytecode folder of this process.

    Without them an interpreter would compile every import again.
    """
    return ("-X", f"pycache_prefix={sys.pycache_prefix}") if sys.pycache_prefix else ()


def find() -> Runtime:
    """Return the runtime of this process: its prefixes, its package folders, and sources that are linked into those.

    Of a linked folder only packages and modules are taken: it may be a project's own, with its keys and history.
    """
    sites = list(filter(_holds_packages, sys.path))
    ramet_package = Path(__file__).parents[1]
    paths = [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        sys.base_exec_prefix,
        *_interpreters(),
        *sites,
        str(ramet_package),
    ]
    paths += [package for folder in _find_linked_folders(sites) for package in _packages(folder)]
    paths += _editable()
    existing = {str(each) for path in paths for each in (Path(path).absolute(), Path(path).resolve()) if each.exists()}
    return Runtime(
        sys.executable, tuple(_outermost(existing)), tuple(dict.fromkeys((str(ramet_package.parent), *sites)))
    )


def _holds_packages(folder: str) -> bool:
    return Path(folder).name in ("site-packages", "dist-packages")


def _interpreters() -> Iterator[str]:
    """Yield the prefixes of every link from our executable to the real one."""
    link = Path(sys.executable)
    for _ in range(40):
        yield str(link.parent.parent)
        if not link.is_symlink():
            return
        link = link.parent / link.readlink()


def _find_linked_folders(sites: Iterable[str]) -> Iterator[str]:
    """Yield the folders that .pth files add to the path."""
    for site in sites:
        for file in sorted(Path(site).glob("*.pth")):
            for line in file.read_text(errors="replace").splitlines():
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    yield str(Path(site, line.strip()))


def _editable() -> Iterator[str]:
    """Yield the packages that setuptools finds by a table, not by a path."""
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            yield from getattr(module, "MAPPING", {}).values()


def _packages(folder: str) -> Iterator[str]:
    root = Path(folder)
    if not root.is_dir():
        return
    for each in root.iterdir():
        if (each / "__init__.py").is_file() or (each.suffix in (".py", ".so") and each.is_file()):
            yield str(each)


def _outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that are not inside another; paths that every system has are mounted anyway."""
    outermost_paths: list[str] = []
    for path in sorted(paths):
        covered_paths = [*outermost_paths, "/usr"]
        if path != "/" and not any(path == outer or path.startswith(outer + os.sep) for outer in covered_paths):
            outermost_paths.append(path)
    return outermost_paths
