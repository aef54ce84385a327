"""Images from which pods start: a base with Python, ramet on top of it, and bundles on top of ramet.

An image that was pushed once is found again by its inputs, and nothing is packed or sent.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn

from ramet.concurrency.deadline import run_shielded
from ramet.concurrency.threads import in_thread
from ramet.core.errors import InvalidValue
from ramet.isolation.kubernetes.program import code_of
from ramet.services.contract import Image
from ramet.services.packaging.oci.layers import Entry, write_entries
from ramet.services.packaging.oci.manifest import container_paths, digest_of
from ramet.services.packaging.oci.push import Base, OnProgress, Progress, base_of, no_progress, publish, push
from ramet.services.packaging.oci.registry import ImageReference, Registry, reference
from ramet.services.packaging.runtime_image.base_library import library_of
from ramet.services.packaging.runtime_image.bytecode import compile_sources
from ramet.services.packaging.runtime_image.files import LIB, PYTHON, Kind, content_digest, own_platform, runtime_files

RUNTIME_LABEL = "ramet.runtime"
PYTHON_LABEL = "ramet.python"  #: a label with the version of Python in a base
_SAYS = "PYTHON_VERSION"  #: a variable in the environment of the images of Docker's library
#: The folder of the bytecode, by the paths of its sources (`pycache_prefix`): a container need not write, nor compile.
BYTECODE = "/opt/ramet/bytecode"
_FORM = 1  #: the format of the layer: another number is another image


class RuntimeImage(NamedTuple):
    """An image from which a pod can be started."""

    reference: str  #: "host:port/repository@sha256:…", as nodes pull it
    digest: str  #: the digest of its manifest
    python: str  #: the program to start, found on the image's PATH: only a Python of this version has the name
    imports: tuple[str, ...] = ()  #: folders of its bundles, and of packages for these: what RAMET_IMPORTS names
    skills: tuple[str, ...] = ()  #: folders of skills of its bundles

    def program(self, module: str) -> tuple[str, ...]:
        """Return the command line that calls `main` of a module of ramet, independent of the image's environment."""
        return (self.python, "-I", "-B", "-X", f"pycache_prefix={BYTECODE}", "-c", code_of(module, LIB))


async def runtime_image(
    registry: Registry,
    base: str,
    kind: Kind,
    *,
    into: str = "",
    source: Registry | None = None,
    on_progress: OnProgress = no_progress,
) -> RuntimeImage:
    """Return an image with ramet and the imports of its guests, on top of `base`. Push it unless it exists.

    The base is in `source`, else in the same registry; it needs a Python of our version and platform. The image is
    pushed to the repository `into`, else to "ramet-" and the kind. Raises InvalidValue for a base that has another
    Python or platform or does not exist, and for an installation that cannot be packed; RegistryFailed, NotCompiled.
    """
    repository = registry.full_name(_repository(into or f"ramet-{kind}"))
    base_image = await base_of(source or registry, base, own_platform())
    _refuse_other(base, base_image)
    files = await in_thread(lambda: runtime_files(kind), name="ramet-runtime")
    content = await in_thread(lambda: content_digest(kind, files), name="ramet-runtime")
    source_digest = digest_of(f"{_FORM}\n{digest_of(base_image.manifest.body)}\n{content}".encode())
    name = ImageReference(repository, source_digest.partition(":")[2])
    digest = await registry.digest(name)
    if digest is None:
        digest = await _push(
            registry, name, base, base_image, files, {RUNTIME_LABEL: kind, PYTHON_LABEL: PYTHON}, on_progress
        )
    return RuntimeImage(f"{registry.name}/{name.repository}@{digest}", digest, f"python{PYTHON}")


async def image_on(
    runtime: RuntimeImage,
    image: Image,
    registry: Registry,
    *,
    into: str = "ramet-images",
    on_progress: OnProgress = no_progress,
) -> RuntimeImage:
    """Return an image of bundles on top of a runtime image of the same registry. Push it unless it exists.

    An image without bundles is the runtime image itself. The tag is derived from the image's id and the runtime image,
    so that the same id is the same code for every request. Raises InvalidValue, RegistryFailed.
    """
    if not image.folders and not image.packages:
        return runtime
    base = runtime.reference.removeprefix(f"{registry.name}/")
    source_digest = digest_of(f"{_FORM}\n{runtime.digest}\n{image.id}".encode())
    name = ImageReference(registry.full_name(_repository(into)), source_digest.partition(":")[2])
    digest = await registry.digest(name)
    if digest is None:
        target = f"{name.repository}:{name.tag}"
        reference_with_digest = await publish(
            image, registry, base=base, to=target, platform=own_platform(), on_progress=on_progress
        )
        digest = reference_with_digest.rpartition("@")[2]
    path_by_folder = {folder: f"/{path}" for path, folder in container_paths(image).items()}
    return RuntimeImage(
        f"{registry.name}/{name.repository}@{digest}",
        digest,
        runtime.python,
        tuple(path_by_folder.values()),
        tuple(f"{path_by_folder[each.parent]}/{each.name}" for each in image.skills),
    )


def _repository(into: str) -> str:
    if into != reference(into).repository:
        raise InvalidValue("into", into, "a repository without a tag, which is made of what is in the image")
    return into


async def _push(
    registry: Registry,
    name: ImageReference,
    base: str,
    base_image: Base,
    files: Mapping[PurePosixPath, Path],
    labels: Mapping[str, str],
    on_progress: OnProgress,
) -> str:
    with tempfile.TemporaryDirectory(prefix="ramet-runtime-") as folder, tempfile.TemporaryFile() as layer_file:
        library = await library_of(base_image, PYTHON, Path(folder), on_progress)
        if library.versions and PYTHON not in library.versions:
            _refuse(base, ", ".join(sorted(library.versions)))
        on_progress(Progress("compiling"))
        library_files = {PurePosixPath(LIB, path): file for path, file in files.items()}
        sources = library.sources | {path: file for path, file in library_files.items() if path.suffix == ".py"}
        bytecode = await compile_sources(sources, Path(folder))
        all_files = library_files | {PurePosixPath(BYTECODE, *path.parts[1:]): out for path, out in bytecode.items()}
        entries = [Entry(str(path)[1:], file) for path, file in all_files.items()]
        on_progress(Progress("packing"))
        layer = await run_shielded(in_thread(lambda: write_entries(layer_file, entries), name="ramet-layer"))
        return await push(
            registry, name, base_image, layer, layer_file, labels=labels, comment="runtime", on_progress=on_progress
        )


def _refuse_other(base: str, base_image: Base) -> None:
    """Raise InvalidValue if a base states another version of Python or another platform."""
    config = json.loads(base_image.config)
    platform = f"{config.get('os')}/{config.get('architecture')}"
    if platform != own_platform():
        raise InvalidValue("base", f"{base} ({platform})", f"an image for {own_platform()}, which this Python is for")
    run = config.get("config") or {}
    version = (run.get("Labels") or {}).get(PYTHON_LABEL, "")
    for each in run.get("Env") or ():
        name, _, value = each.partition("=")
        version = value if name == _SAYS else version
    if version and version != PYTHON and not version.startswith(f"{PYTHON}."):
        _refuse(base, version)


def _refuse(base: str, version: str) -> NoReturn:
    raise InvalidValue("base", f"{base} (Python {version})", f"an image with Python {PYTHON}, which this one is")
