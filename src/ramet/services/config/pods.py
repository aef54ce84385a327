"""The backend `kubernetes` as a configuration wants it: which cluster, which namespace, which image."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from ramet.core.errors import InvalidValue
from ramet.isolation.contract import Backend
from ramet.isolation.folders import RunFolders
from ramet.isolation.kubernetes.backend import PlainImage, PodImage
from ramet.isolation.kubernetes.teams import TeamNamespaces
from ramet.services.config.reading import Config
from ramet.services.packaging.publishing import Progress
from ramet.services.packaging.registries import opened
from ramet.services.packaging.runtime_image import runtime_image

_log = logging.getLogger("ramet.kubernetes")


def pods_of(config: Config, environ: Mapping[str, str]) -> Backend:
    """A backend whose sandboxes are pods. Neither cluster nor registry is asked before it is opened.

    `base_image` holds ramet, or only a Python of our version: then `registry_url` says where an image that has both is
    pushed. Raises InvalidValue for a setting that is missing.
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
        image=_Image(config, config.base_image, environ),
    )


class _Image:
    """The image of all pods, made when it is asked for first."""

    def __init__(self, config: Config, base: str, environ: Mapping[str, str]) -> None:
        self._config, self._base, self._environ = config, base, environ
        self._made: PodImage | None = None

    async def __call__(self) -> PodImage:
        """Raises what the registry refuses, and InvalidValue for a base without our Python."""
        if self._made is None:
            self._made = PlainImage(self._base) if self._config.registry_url is None else await self._on_top()
        return self._made

    async def _on_top(self) -> PodImage:
        config = self._config
        password = config.registry_password.read(self._environ) if config.registry_password is not None else ""
        async with opened(
            str(config.registry_url),
            self._base,
            username=config.registry_username or "",
            password=password,
            environ=self._environ,
        ) as at:
            return await runtime_image(at.registry, at.base, "llm", source=at.source, told=_tell)


def _tell(progress: Progress) -> None:
    if not progress.done:
        _log.info("the image of pods: %s", progress.step)
