"""What pods start from: an image with ramet in it, and perhaps with some of what a run is to see of the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ramet.isolation.contract import Image
from ramet.isolation.kubernetes.program import code_of

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


class Furnished(NamedTuple):
    """An image that has some of the mounts of a run, so that these do not travel."""

    image: PodImage
    places: Mapping[str, str]  #: by the path of a mount on the host: where the image has the same

    def beside(self, mounts: Sequence[str]) -> Furnished:
        """But for what lies in another one of these mounts, and travels with that."""
        alone = [each for each in self.places if not any(Path(other) in Path(each).parents for other in mounts)]
        return self._replace(places={each: self.places[each] for each in alone})


#: Finds an image that has the bundles among these mounts, paths of the host; None if there is none. Whatever it raises
#: is why a run cannot be started.
FindImage = Callable[[Sequence[str]], Awaitable[Furnished | None]]

#: Told of an image that a node could not pull: whether it was lost, and can be asked for anew. Whatever it raises is
#: why it cannot.
PushAgain = Callable[[PodImage], Awaitable[bool]]


def by_kind(image: str | Images) -> Mapping[Image, PodImage]:
    """One for each kind of `SandboxSpec.image`."""
    if isinstance(image, Mapping):
        return dict(image)
    plain = PlainImage(image) if isinstance(image, str) else image
    return {"bare": plain, "llm": plain}
