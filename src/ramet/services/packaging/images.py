"""The images that are there: `<folder>/<id>.json` for each, which names its bundles and what was installed for it."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ramet.core.errors import Damaged, InvalidValue, Unknown
from ramet.disk.regular_files import read_regular
from ramet.services.packaging import atomic_dirs
from ramet.services.packaging.bundles.manifest import MANIFEST
from ramet.services.packaging.bundles.store import REQUIREMENTS, Bundle
from ramet.services.packaging.contract import OPERATOR, BundlesClash, ImageInfo

#: Files that are read when an image is made, and never by who has it: each bundle may have its own.
FOR_PACKAGING = (REQUIREMENTS, MANIFEST)
#: Modules that Python itself would import, or that are ours: a bundle of these names would be hidden, or hide them.
_TAKEN = frozenset((*sys.stdlib_module_names, "__main__", "ramet", "sitecustomize", "usercustomize"))
_ID = re.compile(r"[0-9a-f]{64}\Z")
_MOST = 1 << 26  #: bytes of the record of an image
#: What makes a file importable by its name; what comes between, as in `x.cpython-311-x86_64-linux-gnu.so`, too.
_MODULES = (".py", ".pyc", ".so")


class Recorded(Struct, frozen=True, kw_only=True):
    """An image as it is kept: with the bundles of its base, so that it does not need that any more."""

    info: ImageInfo
    bundles: tuple[str, ...]
    owner: str = OPERATOR  #: who asked for it


def image_id(bundles: Sequence[str], owner: str = OPERATOR) -> str:
    """What an owner's image of these is called, those of its base included: the same for the same, in the same order.

    Each owner has an image of its own: whoever asks for one does not learn whether another has made the same.
    """
    return hashlib.sha256("\n".join(("ramet image 1", owner, *bundles)).encode()).hexdigest()


class Records:
    """Keeps what images are made of. Everything here waits for the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self) -> None:
        """Make the folder, and clear away what an earlier process did not finish."""
        atomic_dirs.open_place(self._folder)

    def find(self, id: str) -> Recorded | None:
        """The image of that id, None if there is none. Raises Damaged."""
        if not _ID.match(id):
            return None
        file = self._file(id)
        try:
            return msgspec.json.decode(read_regular(file, limit=_MOST), type=Recorded)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as problem:
            raise Damaged("the image", file, str(problem)) from None

    def get(self, id: str) -> Recorded:
        """The image of that id. Raises Unknown, Damaged."""
        found = self.find(id)
        if found is None:
            raise Unknown("image", id)
        return found

    def put(self, recorded: Recorded) -> None:
        """Keep it, or another of the same id, which is the same."""
        atomic_dirs.write_json(self._file(recorded.info.id), msgspec.to_builtins(recorded))

    def all(self) -> Sequence[Recorded]:
        """Every image, the oldest first."""
        found = [self.find(each.stem) for each in self._folder.glob("*.json")]
        return sorted((each for each in found if each), key=lambda each: (each.info.created_at, each.info.id))

    def of_bundle(self, bundle: str) -> Sequence[str]:
        """The ids of images that have a bundle, their base's included."""
        found = [self.find(each.stem) for each in self._folder.glob("*.json")]
        return sorted(each.info.id for each in found if each and bundle in each.bundles)

    def delete(self, id: str) -> None:
        """Forget it. Raises Unknown."""
        try:
            if not _ID.match(id):
                raise FileNotFoundError
            self._file(id).unlink()
        except FileNotFoundError:
            raise Unknown("image", id) from None

    def _file(self, id: str) -> Path:
        return self._folder / f"{id}.json"


def refuse_clashes(bundles: Sequence[Bundle]) -> None:
    """Raises BundlesClash if one bundle would hide what another brings: the same file, or a module of the same name.

    Folders that are no package of Python may be shared, and each may have its own requirements.
    """
    files: dict[str, str] = {}
    modules: dict[str, tuple[str, bool]] = {}
    for bundle in bundles:
        for path in bundle.files:
            if path not in FOR_PACKAGING and files.setdefault(path, bundle.id) != bundle.id:
                raise BundlesClash(path, files[path], bundle.id)
        for name, whole in _modules(bundle).items():
            first, shared = modules.setdefault(name, (bundle.id, not whole))
            if first != bundle.id and (whole or not shared):
                raise BundlesClash(name, first, bundle.id)


def refuse_shadows(bundle: Bundle) -> None:
    """Raises InvalidValue for a module of a name that is Python's own, or ours."""
    for name, whole in _modules(bundle).items():
        has_code = whole or any(each.startswith(f"{name}/") and each.endswith(_MODULES) for each in bundle.files)
        if has_code and name in _TAKEN:
            raise InvalidValue("bundle", name, "modules of names that neither Python nor ramet has")


def _modules(bundle: Bundle) -> dict[str, bool]:
    """Names that a bundle makes importable, and whether each is a module or package of its own, which is not shared."""
    found: dict[str, bool] = {}
    for path in bundle.files:
        top, _, rest = path.partition("/")
        if rest:
            found[top] = found.get(top, False) or rest.startswith("__init__.")
        elif top.endswith(_MODULES):
            found[top.partition(".")[0]] = True
    return found
