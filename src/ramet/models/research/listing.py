"""The files of a folder, as far as listing them tells."""

from __future__ import annotations

from typing import NamedTuple

from ramet.models.research.explore import Call
from ramet.models.research.history import Turn
from ramet.models.research.parts import kind_of

_NO_PATH = ("… [", "No files match", "No directories match")


class Listing(NamedTuple):
    """What is known of a folder."""

    files: tuple[str, ...]
    folders: tuple[str, ...]  #: those at the top
    complete: bool  #: there are no other files

    @property
    def readable(self) -> list[str]:
        """The files of text that people wrote or programs logged."""
        return [path for path in self.files if kind_of(path) not in ("binary", "skipped")]

    @property
    def beyond(self) -> list[str] | None:
        """Where files may be that were not listed; None if all were."""
        return None if self.complete else list(self.folders)


def first_look() -> list[Call]:
    """All files, and the folders at the top."""
    return [Call("Glob", {"pattern": "**"}), Call("Glob", {"pattern": "./*/"})]


def second_look(listing: Listing) -> list[Call]:
    """Where there are more files than a listing shows, which are the newest: the upper levels, whatever their age."""
    return [] if listing.complete else [Call("Glob", {"pattern": "./*"}), Call("Glob", {"pattern": "./*/*"})]


def read_listing(turn: Turn) -> Listing:
    """What the looks so far have shown."""
    files: dict[str, None] = {}
    folders: dict[str, None] = {}
    complete = True
    for each in (*turn.of("list"), *turn.of("levels")):
        for line in each.text.split("\n") if not each.failed else ():
            if line.startswith("… ["):
                complete = complete and each.args.get("pattern") != "**"
            elif line.endswith("/"):
                folders.setdefault(line.removesuffix("/"))
            elif line and not line.startswith(_NO_PATH):
                files.setdefault(line)
    return Listing(tuple(files), tuple(folders), complete)
