"""The requests and answers of packaging, and its limits. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from ramet.core.errors import InvalidValue, OutputTooLarge
from ramet.core.outcome import ErrorInfo
from ramet.services.contract import BaseRequest

MB = 1_000_000

#: The owner of the bundles and images that the operator uploaded or requested. Every other owner is the id of a team.
OPERATOR: Final = ""

JobState = Literal["queued", "running", "done", "failed"]


class CreateImage(BaseRequest):
    """Make an image of bundles on top of another image; "" is the plain one."""

    bundles: Sequence[str]
    base: str = ""


class BundleInfo(Struct, frozen=True, kw_only=True):
    """A bundle that is kept: `size` is the bytes of its files, which `files` counts."""

    id: str
    size: int
    files: int


class ImageInfo(Struct, frozen=True, kw_only=True):
    """An image that can be spawned from. `bundles` are its own; those of `base` come before them."""

    id: str
    base: str
    bundles: tuple[str, ...]
    requirements: tuple[str, ...]  #: that were installed for it, those of its base included
    created_at: str


class Job(Struct, frozen=True, kw_only=True):
    """The making of an image. Its id is the image's: the same request is the same job."""

    id: str
    state: JobState
    image: str = ""  #: its id, once it is there
    error: ErrorInfo | None = None  #: why there is none, if it failed


class OwnedBundle(NamedTuple):
    """A bundle, and all owners who uploaded the same files."""

    info: BundleInfo
    owners: tuple[str, ...]

    def is_for(self, asker: str) -> bool:
        """Return whether a team may use the bundle: the team or the operator uploaded it.

        The operator may use each bundle.
        """
        return asker == OPERATOR or asker in self.owners or OPERATOR in self.owners


class OwnedJob(NamedTuple):
    """A job, and the owner who requested the image."""

    job: Job
    owner: str


@dataclass(frozen=True, kw_only=True)
class BundleLimits:
    """The limits of an upload. Sizes are in bytes."""

    upload: int = 64 * MB  #: as it is received, compressed or not
    total: int = 256 * MB  #: of all files
    file: int = 64 * MB  #: of one
    members: int = 10_000  #: files and folders, including folders that have no member of their own
    quota: int = 10_000 * MB  #: of all stored bundles: their files and names, and 1 KiB for each file and folder
    depth: int = 32  #: folders in each other, and the file in them

    @property
    def unpacked_bytes(self) -> int:
        """Return the limit of the whole archive without its compression: the files and their tar headers."""
        return self.total + self.members * 4096 + 64 * 1024


class BundleTooLarge(OutputTooLarge):
    """An upload that exceeds a limit; no part of it was stored. `what` names the limit."""

    def __init__(self, what: str, *, size: int, limit: int) -> None:
        super().__init__(what, size=size, limit=limit)
        self.args = (f"{what}: {size} or more, at most {limit} are accepted",)


class BundlesClash(InvalidValue):
    """Two bundles of one image that contain the same file, or the same module: one would hide the other."""

    def __init__(self, path: str, first: str, second: str) -> None:
        super().__init__("bundles", path, f"a path of only one of them; {first} and {second} both have it")
        self.path, self.first, self.second = path, first, second
