"""The registries that an operator names, opened with a given login, or with Docker's login."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from ramet.core.errors import InvalidValue
from ramet.services.packaging.oci.auth import Login, is_loopback
from ramet.services.packaging.oci.docker_config import login_for
from ramet.services.packaging.oci.registry import Registry

_HUB, _HUB_HOST = "docker.io", "registry-1.docker.io"


class OpenRegistries(NamedTuple):
    """The registry of a base, and the registry for the images built on it: often the same registry."""

    registry: Registry
    source: Registry
    base: str  #: the base's name in `source`


@contextlib.asynccontextmanager
async def open_registries(
    url: str, base: str, *, username: str = "", password: str = "", environ: Mapping[str, str] = os.environ
) -> AsyncIterator[OpenRegistries]:
    """Open both registries, for a base such as "base:1", which is below `url`, or "python.example.org/base:1".

    Raises InvalidValue, HelperFailed.
    """
    host, name = split(base)
    async with contextlib.AsyncExitStack() as stack:
        registry = await stack.enter_async_context(
            open_registry(url, username=username, password=password, environ=environ)
        )
        source = registry
        if host and host != registry.name:
            source = await stack.enter_async_context(open_registry(host, environ=environ))
        yield OpenRegistries(registry, source, name if host else registry.full_name(name))


@contextlib.asynccontextmanager
async def open_registry(
    url: str, *, username: str = "", password: str = "", environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Registry]:
    """Open a registry by its URL, or its host and port; `username` and `password` override Docker's configuration.

    A common prefix of image names may follow the host. Without a scheme, https is used, and http for this machine.
    Raises InvalidValue, HelperFailed.
    """
    if password and not username:
        raise InvalidValue("username", "", "a name, where there is a password")
    async with Registry(url_of(url)) as registry:
        registry.sign_in(Login(username, password) if username else await login_for(registry.name, environ))
        yield registry


def url_of(text: str) -> str:
    """Return the URL of a registry, which may be given by its host and port alone."""
    if "://" in text:
        return text
    host = text.partition("/")[0]
    return f"{'http' if is_loopback(host.rpartition(':')[0] or host) else 'https'}://{text}"


def split(name: str) -> tuple[str, str]:
    """Split a name into its registry, "" if it has none, and the rest."""
    first, slash, rest = name.partition("/")
    if not slash or not (first == "localhost" or "." in first or ":" in first):
        return "", name
    if first == _HUB:
        return _HUB_HOST, rest if "/" in rest else f"library/{rest}"
    return first, rest
