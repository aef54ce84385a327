"""Public names of a package that are imported on first use, so that importing the package costs next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_exports(
    package: str, exports: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, for the names that modules below `ramet` export."""
    modules = {name: f"ramet.{module}" for module, names in exports.items() for name in names}

    def load(name: str) -> object:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        return [*vars(sys.modules[package]), *modules]

    return load, names, sorted(modules)
