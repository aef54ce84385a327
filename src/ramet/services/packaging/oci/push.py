"""An image in a container registry: its folders as one layer on top of an existing base."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import IO, NamedTuple

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue, Unknown
from ramet.services.contract import Image
from ramet.services.packaging.oci.layers import Layer, write_layer
from ramet.services.packaging.oci.manifest import (
    Descriptor,
    ImageManifest,
    NewImage,
    append,
    container_paths,
    digest_of,
)
from ramet.services.packaging.oci.registry import Body, ImageReference, Registry, body_of, reference

LABEL = "ramet.image"
_PIECE = 256 * 1024


class Progress(NamedTuple):
    """The progress of a step, in bytes; `total` is 0 if it is unknown."""

    step: str
    done: int = 0
    total: int = 0


OnProgress = Callable[[Progress], object]  #: called with the progress, in the event loop


def no_progress(_: Progress) -> None:
    """Ignore the progress."""


class Base(NamedTuple):
    """An image of a registry, which may differ from the registry that receives the new image."""

    registry: Registry
    name: ImageReference
    manifest: ImageManifest
    config: bytes


async def base_of(registry: Registry, name: str, platform: str) -> Base:
    """Find an image for a platform. Raises InvalidValue, also if the image does not exist, and RegistryFailed."""
    base_name = reference(name)
    try:
        manifest = await registry.manifest(base_name, platform)
    except Unknown as problem:
        kinds = f", for {' or '.join(problem.known)}" if problem.known else ""
        raise InvalidValue("base", name, f"an image that {registry.name} has{kinds}") from None
    return Base(registry, base_name, manifest, await registry.small_blob(base_name.repository, manifest.config))


async def publish(
    image: Image,
    registry: Registry,
    *,
    base: str,
    to: str,
    platform: str = "linux/amd64",
    on_progress: OnProgress = no_progress,
) -> str:
    """Push an image on top of `base` as `to`, both in one registry. Return its name by digest, "repository@sha256:…".

    The folders of the image are below /opt/ramet in a container, and are on PYTHONPATH. Existing blobs are not sent
    again. The tag is moved last, so that an interrupted push changes nothing. The packed layer is a file without a
    name, on the same disk as the folders. Raises InvalidValue, RegistryFailed, OSError.
    """
    name = reference(to)
    if name.tag.startswith("sha256:"):
        raise InvalidValue("to", to, "a repository, with a tag or without")
    base_image = await base_of(registry, base, platform)
    folders = container_paths(image)
    disk = next((each.parent for each in folders.values()), None)  # A /tmp may be memory, and small.
    with tempfile.TemporaryFile(dir=disk) as layer_file:
        on_progress(Progress("packing"))
        layer = await run_shielded(in_thread(lambda: write_layer(layer_file, folders), name="ramet-layer"))
        paths, labels = [f"/{path}" for path in folders], {LABEL: image.id}
        digest = await push(
            registry, name, base_image, layer, layer_file, paths=paths, labels=labels, on_progress=on_progress
        )
    return f"{name.repository}@{digest}"


async def push(
    registry: Registry,
    name: ImageReference,
    base: Base,
    layer: Layer,
    layer_file: IO[bytes],
    *,
    paths: Sequence[str] = (),
    labels: Mapping[str, str],
    comment: str = "bundles",
    on_progress: OnProgress = no_progress,
) -> str:
    """Push an image of a base and one layer, the tag last. Return the digest of its manifest. Raises RegistryFailed."""
    image = append(base.manifest, base.config, layer, paths=paths, labels=labels, comment=comment)
    of = base.name.repository if base.registry is registry else ""
    for blob in base.manifest.layers:
        body = _count_bytes(
            partial(base.registry.pieces, base.name.repository, blob),
            Progress("copying the base", 0, blob.size),
            on_progress,
        )
        await registry.push_blob(name.repository, blob, body, of=of)
    return await push_whole(registry, name, layer, layer_file, image, on_progress=on_progress)


async def push_whole(
    registry: Registry,
    name: ImageReference,
    layer: Layer,
    layer_file: IO[bytes],
    image: NewImage,
    *,
    on_progress: OnProgress = no_progress,
) -> str:
    """Push the last layer of an image, its config and its manifest. Return the digest of the manifest.

    Raises RegistryFailed.
    """
    body = _count_bytes(lambda: _read(layer_file), Progress("pushing", 0, layer.size), on_progress)
    await registry.push_blob(name.repository, Descriptor("", layer.digest, layer.size), body)
    config = Descriptor("", digest_of(image.config), len(image.config))
    await registry.push_blob(name.repository, config, body_of(image.config))
    return await registry.push_manifest(name, image.manifest, image.media_type)


def _count_bytes(body: Body, progress: Progress, on_progress: OnProgress) -> Body:
    async def pieces() -> AsyncIterator[bytes]:
        done = 0
        async for piece in body():
            yield piece
            done += len(piece)
            on_progress(progress._replace(done=done))

    return pieces


async def _read(file: IO[bytes]) -> AsyncIterator[bytes]:
    await in_thread(lambda: file.seek(0), name="ramet-layer")
    while piece := await in_thread(lambda: file.read(_PIECE), name="ramet-layer"):
        yield piece
