"""The images of pods: each contains ramet, and some contain mounts of the host that a run needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ramet.core.errors import RametError, SandboxFailed
from ramet.isolation.contract import Image, SandboxSpec
from ramet.isolation.kubernetes.program import code_of
from ramet.isolation.zygote.assignment_builder import absolute

DEFAULT_IMAGE: Image = "llm"  #: for a pod that is created before its runs are known; a bare run works in it, too
LIB = "/opt/ramet/site-packages"  #: the folder of a runtime image with ramet and the imports of its guests


class PodImage(Protocol):
    """An image that contains ramet, and the command that starts a module of ramet in it."""

    @property
    def reference(self) -> str: ...
    def program(self, module: str) -> Sequence[str]:
        """Return the command line that calls `main` of a module of ramet."""


Images = PodImage | Mapping[Image, PodImage]


class PlainImage(NamedTuple):
    """A `PodImage` with ramet in LIB, and a Python of this version on its PATH."""

    reference: str

    def program(self, module: str) -> Sequence[str]:
        return ("python3", "-I", "-B", "-c", code_of(module, LIB))


class ImageWithMounts(NamedTuple):
    """An image that already contains some mounts of a run. These mounts are not copied to the pod."""

    image: PodImage
    image_paths: Mapping[str, str]  #: the path of a mount on the host -> its path in the image

    def without_nested(self, mounts: Sequence[str]) -> ImageWithMounts:
        """Return this image without the places that lie inside another one of `mounts`.

        Such a place is copied together with the mount that contains it.
        """
        remaining = [
            each for each in self.image_paths if not any(Path(other) in Path(each).parents for other in mounts)
        ]
        return self._replace(image_paths={each: self.image_paths[each] for each in remaining})


#: Finds an image that has the bundles among these mounts (paths of the host); None if there is none. An error of this
#: function is the reason why a run cannot start.
FindImage = Callable[[Sequence[str]], Awaitable[ImageWithMounts | None]]

#: Called with an image that a node could not pull. Returns whether the image was lost and can be pulled again. An error
#: of this function is the reason why it cannot.
PushAgain = Callable[[PodImage], Awaitable[bool]]


class ImageProvider:
    """The images of a backend's pods. They are found on first use, and again after an image was lost."""

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
        self._image_with, self._push_again = image_with, image_again

    async def find(self) -> None:
        """Find one image of each kind, once. Raises what the function that finds them raises."""
        if self._find is not None and not self._plain:
            self._plain = _by_kind(await self._find())

    def plain(self, kind: Image) -> PodImage:
        """Return the image of a kind, without a run's mounts; call after `find`."""
        return self._plain[kind]

    async def image_for(self, spec: SandboxSpec) -> ImageWithMounts:
        """Return the image of a run, with the mounts that the image contains. Raises SandboxFailed."""
        mounts = [absolute(each) for each in spec.grant.readonly_mounts]
        image = None
        if self._image_with is not None and mounts:
            try:
                image = await self._image_with(mounts)
            except (RametError, OSError) as error:  # A disk may be full.
                raise SandboxFailed(f"run {spec.run}: no image for its pod: {error}") from error
        return ImageWithMounts(self.plain(spec.image), {}) if image is None else image.without_nested(mounts)

    async def restore(self, image: PodImage, failure: SandboxFailed) -> bool:
        """Return whether an image that a node could not pull is available again.

        Raises SandboxFailed if pushing the image fails.
        """
        if self._push_again is None:
            return False
        try:
            if not await self._push_again(image):
                return False
            if self._find is not None:
                self._plain = _by_kind(await self._find())
        except (RametError, OSError) as error:
            raise SandboxFailed(f"{failure}; and it cannot be pushed again: {error}") from error
        return True


def _by_kind(image: str | Images) -> Mapping[Image, PodImage]:
    """Return one image for each kind of `SandboxSpec.image`."""
    if isinstance(image, Mapping):
        return dict(image)
    plain = PlainImage(image) if isinstance(image, str) else image
    return {"bare": plain, "llm": plain}
