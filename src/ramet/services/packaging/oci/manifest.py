"""Images for container registries: manifests and configs, and one layer on top of a base. No network access here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ramet.core.errors import InvalidValue, Unknown
from ramet.services.contract import Image
from ramet.services.packaging.oci.layers import Layer

Kind = Literal["manifest", "config", "layer", "index"]
#: The names of Docker and of OCI for the same things; a layer that is appended to a base uses the names of that base.
TYPES: Mapping[str, Mapping[Kind, str]] = {
    "oci": {
        "manifest": "application/vnd.oci.image.manifest.v1+json",
        "index": "application/vnd.oci.image.index.v1+json",
        "config": "application/vnd.oci.image.config.v1+json",
        "layer": "application/vnd.oci.image.layer.v1.tar+gzip",
    },
    "docker": {
        "manifest": "application/vnd.docker.distribution.manifest.v2+json",
        "index": "application/vnd.docker.distribution.manifest.list.v2+json",
        "config": "application/vnd.docker.container.image.v1+json",
        "layer": "application/vnd.docker.image.rootfs.diff.tar.gzip",
    },
}
PLACE = "opt/ramet"  #: the place of an image's folders in a container
_EPOCH = "1970-01-01T00:00:00Z"


class Descriptor(NamedTuple):
    """A blob of a registry."""

    media_type: str
    digest: str
    size: int

    def as_dict(self) -> dict[str, Any]:
        """Return the descriptor as an entry of a manifest."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


class ImageManifest(NamedTuple):
    """A manifest as received from its registry, and the blobs that it names."""

    body: bytes
    media_type: str
    config: Descriptor
    layers: tuple[Descriptor, ...]


class NewImage(NamedTuple):
    """The data of an image that is pushed after its layers."""

    config: bytes
    manifest: bytes
    media_type: str


def digest_of(data: bytes) -> str:
    """Return the name of a blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def container_paths(image: Image) -> dict[str, Path]:
    """Return the path of each folder of an image in a container, in the order of imports.

    Paths have no leading slash.
    """
    bundles = {f"{PLACE}/bundles/{each.name}": each for each in image.folders}
    return bundles | {f"{PLACE}/packages/{each.name}": each for each in image.packages}


def read_manifest(body: bytes, media_type: str) -> ImageManifest:
    """Return a manifest with the blobs that it names. Raises InvalidValue for invalid data."""
    document = _json(body, "manifest")
    try:
        kinds = [each["manifest"] for each in TYPES.values()]
        if media_type not in kinds:
            raise InvalidValue("manifest", media_type, " or ".join(kinds))
        return ImageManifest(
            body, media_type, _descriptor(document["config"]), tuple(map(_descriptor, document["layers"]))
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        if isinstance(problem, InvalidValue):
            raise
        raise InvalidValue("manifest", body[:100], "a config and layers, each with its type, digest and size") from None


def is_index(media_type: str) -> bool:
    """Return whether a media type is an index, which lists one manifest for each platform."""
    return media_type in (each["index"] for each in TYPES.values())


def of_platform(index: bytes, platform: str) -> str:
    """Return the digest of the manifest for a platform, such as "linux/amd64".

    Raises Unknown, with the existing platforms, if there is none.
    """
    digests: dict[str, str] = {}
    try:
        for each in _json(index, "index")["manifests"]:
            platform_fields = each.get("platform") or {}
            platform_name = f"{platform_fields.get('os')}/{platform_fields.get('architecture')}"
            digests.setdefault(platform_name, _descriptor(each).digest)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidValue("index", index[:100], "manifests, each with its platform and digest") from None
    if platform not in digests:
        raise Unknown("platform", platform, tuple(sorted(digests)))
    return digests[platform]


def append(
    base: ImageManifest,
    config: bytes,
    layer: Layer,
    *,
    paths: Sequence[str],
    labels: Mapping[str, str],
    comment: str = "bundles",
) -> NewImage:
    """Append a layer to a base. Python searches the `paths` in it first.

    Everything else of the base stays unchanged.
    """
    kinds = next(each for each in TYPES.values() if each["manifest"] == base.media_type)
    manifest_document, config_document = _json(base.body, "manifest"), _json(config, "config")
    try:
        config_document["rootfs"]["diff_ids"].append(layer.diff_id)
        config_document.setdefault("history", []).append({"created": _EPOCH, "created_by": "ramet", "comment": comment})
        run = config_document["config"] = config_document.get("config") or {}
        if paths:
            run["Env"] = _with_python_path(run.get("Env") or [], paths)
        run["Labels"] = {**(run.get("Labels") or {}), **labels}
    except (KeyError, TypeError, AttributeError):
        raise InvalidValue("config", config[:100], "the config of an image, with its rootfs") from None
    new_config = _encode(config_document)
    manifest_document["config"] = {
        **manifest_document["config"],
        "digest": digest_of(new_config),
        "size": len(new_config),
    }
    manifest_document["layers"] = [
        *manifest_document["layers"],
        Descriptor(kinds["layer"], layer.digest, layer.size).as_dict(),
    ]
    return NewImage(new_config, _encode(manifest_document), base.media_type)


def _with_python_path(env: list[str], paths: Sequence[str]) -> list[str]:
    previous = [each.partition("=")[2] for each in env if each.startswith("PYTHONPATH=")]
    python_path = ":".join((*paths, *filter(None, previous)))
    return [*(each for each in env if not each.startswith("PYTHONPATH=")), f"PYTHONPATH={python_path}"]


def _descriptor(document: Any) -> Descriptor:
    descriptor = Descriptor(document["mediaType"], document["digest"], document["size"])
    if not (
        isinstance(descriptor.media_type, str) and isinstance(descriptor.digest, str) and type(descriptor.size) is int
    ):
        raise TypeError
    return descriptor


def _json(data: bytes, field: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidValue(field, data[:100], "an object in JSON")
    return value


def _encode(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
