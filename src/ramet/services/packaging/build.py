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
from ramet.services.packaging.bundles.requirements import MAX_SIZE, Packages, parse_requirements
from ramet.services.packaging.bundles.store import REQUIREMENTS, Bundles
from ramet.services.packaging.contract import ImageInfo
from ramet.services.packaging.images import FOR_PACKAGING, ImageRecord, image_id, refuse_clashes, refuse_shadows

MAX_BUNDLES: Final = 100  #: of one image, including the bundles of its base
MAX_FILES: Final = 100_000  #: of all these bundles: their names are compared, and have up to 1 KiB each


def parts_of(base: str, bundles: Sequence[str], base_record: ImageRecord | None) -> tuple[str, ...]:
    """Return the bundles of an image on top of another, in their order. Raises InvalidValue, Unknown."""
    if not bundles or len(set(bundles)) < len(bundles):
        raise InvalidValue("bundles", tuple(bundles), "one or more ids of bundles, each once")
    if base and base_record is None:
        raise Unknown("image", base)
    ids = tuple(dict.fromkeys((*(base_record.bundles if base_record is not None else ()), *bundles)))
    if len(ids) > MAX_BUNDLES:
        raise InvalidValue("bundles", len(ids), f"at most {MAX_BUNDLES} with those of the base")
    return ids


@dataclass(frozen=True)
class ImageBuilder:
    """A builder of images from the given bundles and packages."""

    _bundles: Bundles
    _packages: Packages
    _clock: Clock

    def plan(self, base: str, bundles: Sequence[str], ids: tuple[str, ...], owner: str) -> ImageRecord:
        """Return the record of an image of the bundles `ids`, which `parts_of` returned.

        Raises InvalidValue, Unknown, BundlesClash.
        """
        self._check_file_count(ids)
        refuse_clashes([self._bundles.load(each) for each in ids])
        requirements = self.required_by(ids)
        now = self._clock.now().isoformat()
        id = image_id(ids, owner)
        info = ImageInfo(id=id, base=base, bundles=tuple(bundles), requirements=requirements, created_at=now)
        return ImageRecord(info=info, bundles=ids, owner=owner)

    def required_by(self, bundles: Sequence[str]) -> tuple[str, ...]:
        """Return the packages that bundles require.

        Raises InvalidValue for a line that is no requirement, or for a package that may not be installed.
        """
        return tuple(dict.fromkeys(line for each in bundles for line in self._read_requirements(each)))

    def loadable(self, id: str, present_ids: Sequence[str]) -> LoadableBundle:
        """Return a bundle, with all its files checked, for an agent that has other bundles.

        See `PackagingService.loadable`.
        """
        bundle = self._bundles.load_verified(id)
        if id in present_ids:
            raise InvalidValue("bundle", id, "a bundle that its image does not have")
        if len(present_ids) >= MAX_BUNDLES:
            raise InvalidValue("bundles", len(present_ids) + 1, f"at most {MAX_BUNDLES} with those of its image")
        if REQUIREMENTS in bundle.files:
            raise InvalidValue("bundle", id, f"one without {REQUIREMENTS}: packages are installed for an image only")
        self._check_file_count((*present_ids, id))
        refuse_shadows(bundle)
        refuse_clashes([*map(self._bundles.load, present_ids), bundle])
        files = tuple(each for each in bundle.files if each not in FOR_PACKAGING)
        return LoadableBundle(id, bundle.folder, files, *_read_declarations(bundle.folder))

    def image(self, record: ImageRecord) -> Image:
        """Return a recorded image in the form that agents use. Raises Damaged if a part of it is missing."""
        missing = self.missing(record)
        if missing:
            raise Damaged("the image", missing[0], "this folder is missing; make the image again")
        folders = tuple(map(self._bundles.place, record.bundles))
        return Image(
            record.info.id,
            folders,
            self._package_folders(record),
            tuple(each / SKILLS for each in folders if (each / SKILLS).is_dir()),
            record.bundles,
            tuple(tool for each in folders for tool in _read_declarations(each).tools),
            tuple(dict.fromkeys(skill for each in folders for skill in _read_declarations(each).skills)),
        )

    def missing(self, record: ImageRecord) -> Sequence[Path]:
        """Return the folders that an image needs and that do not exist here."""
        paths = (*map(self._bundles.place, record.bundles), *self._package_folders(record))
        return [each for each in paths if not each.is_dir()]

    def _check_file_count(self, bundles: Sequence[str]) -> None:
        """Raise InvalidValue for bundles with more than MAX_FILES files together, before their names are read."""
        summaries = [self._bundles.summary(each) for each in bundles]
        files = sum(each.count for each in summaries if each is not None)
        if files > MAX_FILES:
            raise InvalidValue("bundles", f"{files} files", f"bundles that have at most {MAX_FILES} files together")

    def _read_requirements(self, id: str) -> tuple[str, ...]:
        if not self._bundles.has(id):
            raise Unknown("bundle", id)
        file = self._bundles.place(id) / REQUIREMENTS
        if not file.is_file():
            return ()
        location = f"{REQUIREMENTS} of bundle {id}"
        requirements = parse_requirements(read_bounded(file, MAX_SIZE, location), location)
        self._packages.refuse(requirements, location)
        return requirements

    def _package_folders(self, record: ImageRecord) -> tuple[Path, ...]:
        requirements = record.info.requirements
        return (self._packages.place(requirements),) if requirements else ()


class _Declarations(NamedTuple):
    tools: tuple[CodeTool, ...]
    skills: tuple[str, ...]


@lru_cache(maxsize=256)
def _read_declarations(folder: Path) -> _Declarations:
    """Return the tools and skills that a stored bundle declares. A folder of this name never changes its content."""
    return _Declarations(declared_tools(folder), manifest_of(folder).skills)
