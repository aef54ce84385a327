"""What pods start from: an image with ramet in it, and perhaps with some of what a run is to see of the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ramet.core.errors import RametError, SandboxFailed
from ramet.isolation.contract import Image, SandboxSpec
from ramet.isolation.kubernetes.program import code_of
from ramet.isolation.zygote.admission import absolute

USUAL: Image = "llm"  #: of a pod that is made before its runs are known: a bare one can be had in it, too
LIB = "/opt/ramet/site-packages"  #: where a runtime image has ramet and what its guests import


class PodImage(Protocol):
    """An image with ramet in it, and how to start a module of it."""

    @property
    def reference(self) -> str: ...
    def program(self, module: str) -> Sequence[str]:
        """The command line that calls `main` of a module of ramet."""


Images = PodImage | Mapping[Image, PodImage]


class PlainImage(NamedTuple):
    """An image with a Python of our version on its PATH, and ramet in LIB."""

    reference: str

    def program(self, module: str) -> Sequence[str]:
        """See `PodImage`."""
        return ("python3", "-I", "-B", "-c", code_of(module, LIB))


class ImageWithMounts(NamedTuple):
    """An image that has some of the mounts of a run, so that these do not travel."""

    image: PodImage
    places: Mapping[str, str]  #: by the path of a mount on the host: where the image has the same

    def beside(self, mounts: Sequence[str]) -> ImageWithMounts:
        """But for what lies in another one of these mounts, and travels with that."""
        alone = [each for each in self.places if not any(Path(other) in Path(each).parents for other in mounts)]
        return self._replace(places={each: self.places[each] for each in alone})


#: Finds an image that has the bundles among these mounts, paths of the host; None if there is none. Whatever it raises
#: is why a run cannot be started.
FindImage = Callable[[Sequence[str]], Awaitable[ImageWithMounts | None]]

#: Told of an image that a node could not pull: whether it was lost, and can be asked for anew. Whatever it raises is
#: why it cannot.
PushAgain = Callable[[PodImage], Awaitable[bool]]


class ImageProvider:
    """What a backend's pods start from, found when it is needed first and again when it was lost."""

    def __init__(
        self,
        image: str | Images | Callable[[], Awaitable[Images]],
        image_with: FindImage | None = None,
        image_again: PushAgain | None = None,
    ) -> None:
        self._plain: Mapping[Image, PodImage] = {}
        self._find: Callable[[], Awaitable[Images]] | None = None
        if isinstance(image, str) or not callable(image):
            self._plain = _by_kind(image)
        else:
            self._find = image
        self._image_with, self._image_again = image_with, image_again

    async def find(self) -> None:
        """Have one of each kind. Raises what finding them does."""
        if self._find is not None and not self._plain:
            self._plain = _by_kind(await self._find())

    def plain(self, kind: Image) -> PodImage:
        """One that has no run's mounts; after `find`."""
        return self._plain[kind]

    async def furnished(self, spec: SandboxSpec) -> ImageWithMounts:
        """The image that a run starts from, with what it has of its mounts. Raises SandboxFailed."""
        mounts = [absolute(each) for each in spec.grant.readonly_mounts]
        found = None
        if self._image_with is not None and mounts:
            try:
                found = await self._image_with(mounts)
            except (RametError, OSError) as error:  # A disk may be full.
                raise SandboxFailed(f"run {spec.run}: no image for its pod: {error}") from error
        return ImageWithMounts(self.plain(spec.image), {}) if found is None else found.beside(mounts)

    async def is_there_again(self, image: PodImage, failure: SandboxFailed) -> bool:
        """Whether an image that a node could not pull is there by now. Raises SandboxFailed where pushing it fails."""
        if self._image_again is None:
            return False
        try:
            if not await self._image_again(image):
                return False
            if self._find is not None:
                self._plain = _by_kind(await self._find())
        except (RametError, OSError) as error:
            raise SandboxFailed(f"{failure}; and it cannot be pushed again: {error}") from error
        return True


def _by_kind(image: str | Images) -> Mapping[Image, PodImage]:
    """One for each kind of `SandboxSpec.image`."""
    if isinstance(image, Mapping):
        return dict(image)
    plain = PlainImage(image) if isinstance(image, str) else image
    return {"bare": plain, "llm": plain}
