"""Python's own library of a base image: read from its layers, because few bases contain its bytecode."""

from __future__ import annotations

import contextlib
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.services.packaging.oci.push import Base, OnProgress, Progress

MAX_SOURCE = 4 * 1024 * 1024  #: bytes of one file of the library
_PLACE = re.compile(r"(?P<home>(?:[^/]+/)*lib(?:64)?/python(?P<version>3\.[0-9]+))/(?P<path>.+\.py)")
#: Folders that are no part of the library, or that only programs with a screen import.
_UNUSED = frozenset((
    "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib2to3", "turtledemo", "tkinter",
    "ensurepip", "pydoc_data",
))  # fmt: skip


class BaseLibrary(NamedTuple):
    """The library of a base: `sources` by their paths in a container, and all versions of Python that have one."""

    sources: dict[PurePosixPath, Path]
    versions: frozenset[str]


async def library_of(base: Base, version: str, folder: Path, on_progress: OnProgress) -> BaseLibrary:
    """Read the sources of one version of Python into `folder`. Raises RegistryFailed.

    Unreadable data is skipped: layers without gzip compression, and a missing end of a tar. Container engines accept
    both.
    """
    sources: dict[PurePosixPath, Path] = {}
    versions: set[str] = set()

    def keep(place: str, content: Callable[[], bytes]) -> None:
        match = _PLACE.fullmatch(place)
        if match is None or _UNUSED.intersection(match["path"].split("/")):
            return
        versions.add(match["version"])
        if match["version"] == version:
            data = content()
            # A later layer wins.
            sources.setdefault(PurePosixPath("/", place), folder / f"{len(sources)}.py").write_bytes(data)

    for layer in base.manifest.layers:
        with tempfile.TemporaryFile() as temporary_file:
            done = 0
            async for piece in base.registry.pieces(base.name.repository, layer):
                await in_thread(lambda data=piece: temporary_file.write(data), name="ramet-base")  # type: ignore[misc]
                done += len(piece)
                on_progress(Progress("reading the base", done, layer.size))
            if layer.media_type.endswith("gzip"):
                await run_shielded(in_thread(lambda opened=temporary_file: _read(opened, keep), name="ramet-base"))  # type: ignore[misc]
    return BaseLibrary(sources, frozenset(versions))


def _read(file: IO[bytes], keep: Callable[[str, Callable[[], bytes]], None]) -> None:
    file.seek(0)
    with (
        contextlib.suppress(tarfile.TarError, zlib.error, EOFError, OSError),
        tarfile.open(fileobj=file, mode="r:gz") as layer,
    ):
        for member in layer:
            if member.isreg() and member.size <= MAX_SOURCE:
                keep(member.name.removeprefix("./").lstrip("/"), lambda each=member: _content(layer, each))  # type: ignore[misc]
            layer.members.clear()  # type: ignore[attr-defined]


def _content(layer: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = layer.extractfile(member)
    assert stream is not None, "a regular file"
    with stream:
        return stream.read()
