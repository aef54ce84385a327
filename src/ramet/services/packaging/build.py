"""Build images, and bundles to be loaded, from the folder of this kernel. Every function waits for the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from ramet.concurrency.clock import Clock
from ramet.core.errors import Damaged, InvalidValue, Unknown
from ramet.services.contract import CodeTool, Image, LoadableBundle
from ramet.services.packaging.atomic_dirs import read_bounded
from ramet.services.packaging.bundles.manifest import SKILLS, declared_tools, manifest_of
from ramet.services.packaging.bundles.requirements import MAX_SIZE, Packages, parsed
from ramet.services.packaging.bundles.store import REQUIREMENTS, Bundles
from ramet.services.packaging.contract import ImageInfo
from ramet.services.packaging.images import FOR_PACKAGING, Recorded, image_id, refuse_clashes, refuse_shadows

MAX_BUNDLES: Final = 100  #: of one image, including the bundles of its base
MAX_FILES: Final = 100_000  #: of all these bundles: their names are compared, and have up to 1 KiB each


def parts_of(base: str, bundles: Sequence[str], below: Recorded | None) -> tuple[str, ...]:
    """Return the bundles of an image on top of another, in their order. Raises InvalidValue, Unknown."""
    if not bundles or len(set(bundles)) < len(bundles):
        raise InvalidValue("bundles", tuple(bundles), "one or more ids of bundles, each once")
    if base and below is None:
        raise Unknown("image", base)
    ids = tuple(dict.fromkeys((*(below.bundles if below is not None else ()), *bundles)))
    if len(ids) > MAX_BUNDLES:
        raise InvalidValue("bundles", len(ids), f"at most {MAX_BUNDLES} with those of the base")
    return ids


@dataclass(frozen=True)
class ImageBuilder:
    """A builder of images from the given bundles and packages."""

    _bundles: Bundles
    _packages: Packages
    _clock: Clock

    def planned(self, base: str, bundles: Sequence[str], ids: tuple[str, ...], owner: str) -> Recorded:
        """Return the record of an image of the bundles `ids`, which `parts_of` returned.

        Raises InvalidValue, Unknown, BundlesClash.
        """
        self._check_file_count(ids)
        refuse_clashes([self._bundles.load(each) for each in ids])
        requirements = self.required_by(ids)
        now = self._clock.now().isoformat()
        id = image_id(ids, owner)
        info = ImageInfo(id=id, base=base, bundles=tuple(bundles), requirements=requirements, created_at=now)
        return Recorded(info=info, bundles=ids, owner=owner)

    def required_by(self, bundles: Sequence[str]) -> tuple[str, ...]:
        """Return the packages that bundles require.

        Raises InvalidValue for a line that is no requirement, or for a package that may not be installed.
        """
        return tuple(dict.fromkeys(line for each in bundles for line in self._required(each)))

    def loadable(self, id: str, beside: Sequence[str]) -> LoadableBundle:
        """Return a bundle, with all its files checked, for an agent that has other bundles.

        See `PackagingService.loadable`.
        """
        bundle = self._bundles.whole(id)
        if id in beside:
            raise InvalidValue("bundle", id, "a bundle that its image does not have")
        if len(beside) >= MAX_BUNDLES:
            raise InvalidValue("bundles", len(beside) + 1, f"at most {MAX_BUNDLES} with those of its image")
        if REQUIREMENTS in bundle.files:
            raise InvalidValue("bundle", id, f"one without {REQUIREMENTS}: packages are installed for an image only")
        self._check_file_count((*beside, id))
        refuse_shadows(bundle)
        refuse_clashes([*map(self._bundles.load, beside), bundle])
        files = tuple(each for each in bundle.files if each not in FOR_PACKAGING)
        return LoadableBundle(id, bundle.folder, files, *_declared(bundle.folder))

    def image(self, recorded: Recorded) -> Image:
        """Return a recorded image in the form that agents use. Raises Damaged if a part of it is missing."""
        missing = self.missing(recorded)
        if missing:
            raise Damaged("the image", missing[0], "this folder is missing; make the image again")
        folders = tuple(map(self._bundles.place, recorded.bundles))
        return Image(
            recorded.info.id,
            folders,
            self._installed(recorded),
            tuple(each / SKILLS for each in folders if (each / SKILLS).is_dir()),
            recorded.bundles,
            tuple(tool for each in folders for tool in _declared(each).tools),
            tuple(dict.fromkeys(skill for each in folders for skill in _declared(each).skills)),
        )

    def missing(self, recorded: Recorded) -> Sequence[Path]:
        """Return the folders that an image needs and that do not exist here."""
        paths = (*map(self._bundles.place, recorded.bundles), *self._installed(recorded))
        return [each for each in paths if not each.is_dir()]

    def _check_file_count(self, bundles: Sequence[str]) -> None:
        """Raise InvalidValue for bundles with more than MAX_FILES files together, before their names are read."""
        summaries = [self._bundles.summary(each) for each in bundles]
        files = sum(each.count for each in summaries if each is not None)
        if files > MAX_FILES:
            raise InvalidValue("bundles", f"{files} files", f"bundles that have at most {MAX_FILES} files together")

    def _required(self, id: str) -> tuple[str, ...]:
        if not self._bundles.has(id):
            raise Unknown("bundle", id)
        file = self._bundles.place(id) / REQUIREMENTS
        if not file.is_file():
            return ()
        where = f"{REQUIREMENTS} of bundle {id}"
        requirements = parsed(read_bounded(file, MAX_SIZE, where), where)
        self._packages.refuse(requirements, where)
        return requirements

    def _installed(self, recorded: Recorded) -> tuple[Path, ...]:
        requirements = recorded.info.requirements
        return (self._packages.place(requirements),) if requirements else ()


class _Declared(NamedTuple):
    tools: tuple[CodeTool, ...]
    skills: tuple[str, ...]


@lru_cache(maxsize=256)
def _declared(folder: Path) -> _Declared:
    """Return the tools and skills that a stored bundle declares. A folder of this name never changes its content."""
    return _Declared(declared_tools(folder), manifest_of(folder).skills)
