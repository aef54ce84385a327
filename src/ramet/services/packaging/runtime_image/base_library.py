"""Python's own library of a base image: read from its layers, because few bases contain its bytecode."""

from __future__ import annotations

import contextlib
import re
import tarfile
import tempfile
import zlib
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.services.packaging.oci.push import Base, OnProgress, Progress

MAX_SOURCE = 4 * 1024 * 1024  #: bytes of one file of the library
_PLACE = re.compile(r"(?:[^/]+/)*lib(?:64)?/python(?P<version>3\.[0-9]+)/(?P<path>.+\.py)")
#: Folders that are no part of the library, or that only programs with a screen import.
_UNUSED = frozenset((
    "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib2to3", "turtledemo", "tkinter",
    "ensurepip", "pydoc_data",
))  # fmt: skip


class BaseLibrary(NamedTuple):
    """The library of a base: `sources` by their paths in a container, and all versions of Python that have one."""

    sources: dict[PurePosixPath, Path]
    versions: set[str]


async def library_of(base: Base, version: str, folder: Path, on_progress: OnProgress) -> BaseLibrary:
    """Read the sources of one version of Python into `folder`. Raises RegistryFailed.

    Unreadable data is skipped: layers without gzip compression, and a missing end of a tar. Container engines accept
    both.
    """
    library = BaseLibrary({}, set())
    for layer in base.manifest.layers:
        with tempfile.TemporaryFile() as layer_file:
            done = 0
            async for piece in base.registry.pieces(base.name.repository, layer):
                await in_thread(partial(layer_file.write, piece), name="ramet-base")
                done += len(piece)
                on_progress(Progress("reading the base", done, layer.size))
            if layer.media_type.endswith("gzip"):
                read = partial(_read, layer_file, library, version, folder)
                await run_shielded(in_thread(read, name="ramet-base"))
    return library


def _read(file: IO[bytes], library: BaseLibrary, version: str, folder: Path) -> None:
    file.seek(0)
    with (
        contextlib.suppress(tarfile.TarError, zlib.error, EOFError, OSError),
        tarfile.open(fileobj=file, mode="r:gz") as layer,
    ):
        for member in layer:
            match = _PLACE.fullmatch(member.name.removeprefix("./").lstrip("/"))
            if (
                match is not None
                and member.isreg()
                and member.size <= MAX_SOURCE
                and not _UNUSED.intersection(match["path"].split("/"))
            ):
                library.versions.add(match["version"])
                if match["version"] == version:
                    stream = layer.extractfile(member)
                    assert stream is not None, "a regular file"
                    place = PurePosixPath("/", match[0])  # A later layer wins.
                    library.sources.setdefault(place, folder / f"{len(library.sources)}.py").write_bytes(stream.read())
            layer.members.clear()  # type: ignore[attr-defined]
