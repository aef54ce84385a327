"""The backend `kubernetes`, from its configuration: cluster, namespace and image."""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

from ramet.core.errors import Conflict, InvalidValue, SandboxFailed
from ramet.disk.state_folder import OLDER_POD_LISTENER, POD_LISTENER, ensure_folder, ensure_state_folder
from ramet.isolation.contract import Backend
from ramet.isolation.kubernetes.connect.listener import SharedListener
from ramet.isolation.kubernetes.images import PlainImage
from ramet.isolation.kubernetes.kernels import KernelIdentity
from ramet.isolation.kubernetes.team_backend import TeamNamespaces
from ramet.isolation.transport import certificates
from ramet.isolation.transport.certificates import ServerIdentity
from ramet.isolation.workspace.run_dirs import RunFolders
from ramet.services.config.load import Config
from ramet.services.config.settings import TcpAddress
from ramet.services.packaging.oci.auth import RegistryFailed
from ramet.services.packaging.oci.push import Progress
from ramet.services.packaging.oci.registries import OpenRegistries, open_registries, split, url_of
from ramet.services.packaging.oci.registry import reference, split_url
from ramet.services.packaging.runtime_image.build import RuntimeImage
from ramet.services.packaging.runtime_image.pod_images import PodImages
from ramet.store.contract import Store

_log = logging.getLogger("ramet.kubernetes")
_KIND, _PLACE = "kubernetes", "place"  #: the kind and the key of the document with the name of the place


def pods_of(config: Config, images: PodImages | None = None, store: Store | None = None) -> Backend:
    """Return a backend whose sandboxes are pods. Cluster and registry are not contacted before it is opened.

    `images` are those of `images_of`; without them, `base_image` must contain ramet. `store` is shared by several
    kernels, which clean up after each other; it is opened before the backend. Raises InvalidValue if a setting is
    missing, or requires another one.
    """
    if config.base_image is None:
        accepted = (
            "the image that pods are made of: with ramet in it, or with a Python of this version and a registry_url"
        )
        raise InvalidValue("base_image", None, accepted)
    return TeamNamespaces(
        RunFolders(config.working_dir).root,
        namespace=config.namespace or "default",
        kubeconfig=config.kubeconfig,
        image=PlainImage(config.base_image) if images is None else partial(_plain_image, config, images),
        image_with=None if images is None else images.image_with_mounts,
        image_again=None if images is None else images.push_again,
        listener=listener_of(config),
        per=config.pods.per,
        warm=config.pods.warm,
        pull_secrets=() if config.pods.pull_secret is None else (config.pods.pull_secret,),
        standing=None if store is None else KernelIdentities(store),
    )


def listener_of(config: Config) -> SharedListener | None:
    """Return the listener that pods dial; None if pods do not dial."""
    pods, dial = config.pods, config.pods.dial
    files = (pods.certificate, pods.key, pods.ca)
    if dial is None:
        for name, value in (("listen", pods.listen), ("certificate", pods.certificate), ("key", pods.key)):
            if value is not None:
                raise InvalidValue(f"pods.{name}", str(value), "nothing, unless pods.dial is set")
        return None
    if any(files) and not all(files):
        accepted = "files of pods.certificate, pods.key and pods.ca, all three or none"
        raise InvalidValue("pods.certificate", str(pods.certificate), accepted)
    any_address = "::" if ":" in dial.host else "0.0.0.0"
    listen = pods.listen or TcpAddress(any_address, dial.port)
    certificate, key, ca = files

    def identify() -> ServerIdentity:
        if certificate is not None and key is not None and ca is not None:
            return certificates.from_files(certificate, key, ca)
        state = ensure_state_folder(config.working_dir)
        # Pods that an older version started trust the authority that is in the folder of the older name.
        name = OLDER_POD_LISTENER if (state / OLDER_POD_LISTENER).is_dir() else POD_LISTENER
        return certificates.make([dial.host], ensure_folder(state / name))

    return SharedListener((dial.host, dial.port), listen=(listen.host, listen.port), identify=identify)


class KernelIdentities:
    """The identity of a kernel among those of its store. All kernels share one place: a random name in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def __call__(self) -> KernelIdentity:
        store = self._store
        live_kernels = {each.name: f"{each.name}@{each.epoch}" for each in await store.kernels() if each.alive}
        if store.kernel not in live_kernels:
            raise SandboxFailed(f"kernel {store.kernel} is not one of the live kernels")
        return KernelIdentity(await self._place(), live_kernels[store.kernel], tuple(live_kernels.values()))

    async def _place(self) -> str:
        with contextlib.suppress(Conflict):  # Another kernel wrote the document first.
            if await self._store.get(_KIND, _PLACE) is None:
                await self._store.put(_KIND, _PLACE, secrets.token_hex(16).encode(), expected=0)
        document = await self._store.get(_KIND, _PLACE)
        assert document is not None, "the kernel that was first has written it"
        return document.data.decode()


def images_of(config: Config, environ: Mapping[str, str]) -> PodImages | None:
    """Return the images for pods if `base_image` does not contain ramet; None if it does.

    No registry is contacted, and no secret is read, before an image is needed. Raises InvalidValue.
    """
    url, base = config.registry_url, config.base_image
    if url is None or base is None:
        return None
    with _by_their_settings(config):
        split_url(url_of(url))
        reference(split(base)[1])

    def opening() -> AbstractAsyncContextManager[OpenRegistries]:
        password = config.registry_password.read(environ) if config.registry_password is not None else ""
        return open_registries(url, base, username=config.registry_username or "", password=password, environ=environ)

    return PodImages(opening, on_progress=_tell)


async def _plain_image(config: Config, images: PodImages) -> RuntimeImage:
    with _by_their_settings(config):
        return await images.image()


#: The setting for each field of an error about an image or a registry.
_SETTINGS = {"url": "registry_url", "username": "registry_username", "reference": "base_image", "base": "base_image"}


@contextlib.contextmanager
def _by_their_settings(config: Config) -> Iterator[None]:
    """Convert errors to name the settings.

    A registry that does not answer raises SandboxFailed, since it may recover.
    """
    try:
        yield
    except InvalidValue as problem:
        field, value = _SETTINGS.get(problem.field, problem.field), problem.value
        if field == "base_image" and value == split(config.base_image or "")[1]:
            value = config.base_image  # as it was written
        raise InvalidValue(field, value, problem.accepted) from problem
    except RegistryFailed as problem:
        remedy = (
            "; see registry_username and registry_password, or docker login" if problem.status in (401, 403) else ""
        )
        subject = f"base_image {config.base_image} and registry_url {config.registry_url}"
        raise SandboxFailed(f"no image for pods of {subject}: {problem}{remedy}") from problem


def _tell(progress: Progress) -> None:
    if not progress.done:
        _log.info("the image of pods: %s", progress.step)
