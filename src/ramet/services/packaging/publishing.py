"""An image in a container registry: its folders as one layer on top of a base that is there."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from typing import IO

from ramet.concurrency.deadline import to_its_end
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue
from ramet.services.contract import Image
from ramet.services.packaging.layers import write_layer
from ramet.services.packaging.oci import Descriptor, append, digest_of, places
from ramet.services.packaging.registry import Reference, Registry, reference

LABEL = "ramet.image"
_PIECE = 256 * 1024


async def publish(image: Image, registry: Registry, *, base: str, to: str, platform: str = "linux/amd64") -> str:
    """Push an image on top of `base` as `to`, both in one registry; its name by digest, "repository@sha256:…".

    Its folders lie below /opt/ramet in a container, and are on PYTHONPATH. What is there already is not sent again; the
    tag is moved last, so that a push that breaks off changes nothing. Raises Unknown, InvalidValue, RegistryFailed.
    """
    below, name = reference(base), reference(to)
    if name.tag.startswith("sha256:"):
        raise InvalidValue("to", to, "a repository, with a tag or without")
    manifest = await registry.manifest(below, platform)
    config = await registry.small_blob(below.repository, manifest.config)
    folders = places(image)
    with tempfile.TemporaryFile() as packed:
        layer = await to_its_end(in_thread(lambda: write_layer(packed, folders), name="ramet-layer"))
        paths, labels = [f"/{place}" for place in folders], {LABEL: image.id}
        whole = append(manifest, config, layer, paths=paths, labels=labels)
        for blob in manifest.layers:
            await _copy(registry, below.repository, name, blob)
        await registry.push_blob(name.repository, Descriptor("", layer.digest, layer.size), lambda: _read(packed))
    made = Descriptor("", digest_of(whole.config), len(whole.config))
    await registry.push_blob(name.repository, made, lambda: _once(whole.config))
    digest = await registry.push_manifest(name, whole.manifest, whole.media_type)
    return f"{name.repository}@{digest}"


async def _copy(registry: Registry, source: str, name: Reference, blob: Descriptor) -> None:
    await registry.push_blob(name.repository, blob, lambda: registry.pieces(source, blob), of=source)


async def _read(file: IO[bytes]) -> AsyncIterator[bytes]:
    await in_thread(lambda: file.seek(0), name="ramet-layer")
    while piece := await in_thread(lambda: file.read(_PIECE), name="ramet-layer"):
        yield piece


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
