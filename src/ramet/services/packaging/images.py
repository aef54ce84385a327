"""Images: their records and ids, and which bundles can be in one image."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence

from msgspec import Struct

from ramet.core.errors import InvalidValue
from ramet.services.packaging.bundles.manifest import MANIFEST
from ramet.services.packaging.bundles.store import REQUIREMENTS, Bundle
from ramet.services.packaging.contract import OPERATOR, BundlesClash, ImageInfo

#: Files that are read only when an image is made, never by an agent that has it: each bundle may have its own.
FOR_PACKAGING = (REQUIREMENTS, MANIFEST)
#: Modules of Python or of ramet: a bundle with a module of such a name would hide it, or be hidden by it.
_TAKEN = frozenset((*sys.stdlib_module_names, "__main__", "ramet", "sitecustomize", "usercustomize"))
#: Endings that make a file importable. Tags before the ending are allowed: `x.cpython-311-x86_64-linux-gnu.so`.
_MODULES = (".py", ".pyc", ".so")


class ImageRecord(Struct, frozen=True, kw_only=True):
    """The record of an image. It has the bundles of the base image too, so the base image is no longer needed."""

    info: ImageInfo
    bundles: tuple[str, ...]
    owner: str = OPERATOR  #: who requested it


def image_id(bundles: Sequence[str], owner: str = OPERATOR) -> str:
    """Return the id of an owner's image of these bundles, including the bundles of its base.

    The same bundles in the same order have the same id. Each owner has a separate image: a requester cannot learn
    whether another owner has made the same one.
    """
    return hashlib.sha256("\n".join(("ramet image 1", owner, *bundles)).encode()).hexdigest()


def refuse_clashes(bundles: Sequence[Bundle]) -> None:
    """Raise BundlesClash if one bundle would hide a part of another: the same file, or a module of the same name.

    Bundles may share folders that are not Python packages. Each bundle may have its own requirements and manifest.
    """
    files: dict[str, str] = {}
    modules: dict[str, tuple[str, bool]] = {}
    for bundle in bundles:
        for path in bundle.files:
            if path not in FOR_PACKAGING and files.setdefault(path, bundle.id) != bundle.id:
                raise BundlesClash(path, files[path], bundle.id)
        for name, is_whole in _modules(bundle).items():
            first, shared = modules.setdefault(name, (bundle.id, not is_whole))
            if first != bundle.id and (is_whole or not shared):
                raise BundlesClash(name, first, bundle.id)


def refuse_shadows(bundle: Bundle) -> None:
    """Raise InvalidValue for a module with the name of a module of Python or of ramet."""
    for name, is_whole in _modules(bundle).items():
        has_code = is_whole or any(each.startswith(f"{name}/") and each.endswith(_MODULES) for each in bundle.files)
        if has_code and name in _TAKEN:
            raise InvalidValue("bundle", name, "modules of names that neither Python nor ramet has")


def _modules(bundle: Bundle) -> dict[str, bool]:
    """Return the importable names of a bundle.

    The value is True for a module or regular package, which is never shared.
    """
    modules: dict[str, bool] = {}
    for path in bundle.files:
        top, _, remainder = path.partition("/")
        if remainder:
            modules[top] = modules.get(top, False) or remainder.startswith("__init__.")
        elif top.endswith(_MODULES):
            modules[top.partition(".")[0]] = True
    return modules
