"""A base image from a tar: the root of a system, as mmdebstrap, debootstrap or `docker export` make it."""

from __future__ import annotations

import gzip
import json
import tempfile
import zlib
from pathlib import Path
from typing import IO, cast

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue
from ramet.services.packaging.oci.layers import Layer, write_tar
from ramet.services.packaging.oci.manifest import TYPES, Descriptor, NewImage, digest_of
from ramet.services.packaging.oci.push import OnProgress, Progress, no_progress, push_whole
from ramet.services.packaging.oci.registry import Registry, reference
from ramet.services.packaging.runtime_image.files import own_platform

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_GZIP = b"\x1f\x8b"
_MAGIC, _AT = b"ustar", 257


async def push_base(registry: Registry, root: Path, to: str, *, on_progress: OnProgress = no_progress) -> str:
    """Push a tar, plain or gzip-compressed, as an image of one layer. Return its name, "host/repository@sha256:…".

    The same tar gives the same image. Raises InvalidValue, RegistryFailed, OSError.
    """
    name = reference(registry.full_name(to))
    if name.tag.startswith("sha256:"):
        raise InvalidValue("to", to, "a repository, with a tag or without")
    with tempfile.TemporaryFile() as archive:
        on_progress(Progress("packing"))
        layer = await run_shielded(in_thread(lambda: _pack(root, archive), name="ramet-layer"))
        system, _, architecture = own_platform().partition("/")
        config = {
            "architecture": architecture,
            "os": system,
            "config": {"Env": [f"PATH={PATH}"], "Cmd": ["python3"]},
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id]},
        }
        data = json.dumps(config, separators=(",", ":")).encode()
        kinds = TYPES["oci"]
        manifest = {
            "schemaVersion": 2,
            "mediaType": kinds["manifest"],
            "config": Descriptor(kinds["config"], digest_of(data), len(data)).as_dict(),
            "layers": [Descriptor(kinds["layer"], layer.digest, layer.size).as_dict()],
        }
        image = NewImage(data, json.dumps(manifest, separators=(",", ":")).encode(), kinds["manifest"])
        digest = await push_whole(registry, name, layer, archive, image, on_progress=on_progress)
    return f"{registry.name}/{name.repository}@{digest}"


def _pack(root: Path, layer_file: IO[bytes]) -> Layer:
    with root.open("rb") as source_file:
        magic = source_file.read(len(_GZIP))
        source_file.seek(0)
        source = cast(IO[bytes], gzip.GzipFile(fileobj=source_file) if magic == _GZIP else source_file)
        try:
            if source.read(_AT + len(_MAGIC))[_AT:] != _MAGIC:
                raise InvalidValue("tar", str(root), "a tar, plain or with gzip")
            source.seek(0)
            return write_tar(layer_file, source)
        except (gzip.BadGzipFile, zlib.error, EOFError) as problem:
            raise InvalidValue("tar", str(root), f"a whole tar, plain or with gzip; {problem}") from None
