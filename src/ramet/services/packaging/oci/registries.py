"""The registries that an operator names: opened with a login that is said, or with the one that Docker has."""

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


class Opened(NamedTuple):
    """Where a base is, and where what is made of it goes: often one registry."""

    registry: Registry
    source: Registry
    base: str  #: the base's name in `source`


@contextlib.asynccontextmanager
async def opened(
    url: str, base: str, *, username: str = "", password: str = "", environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Opened]:
    """Both registries, for a base such as "base:1", which is below `url`, or "python.example.org/base:1".

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
        yield Opened(registry, source, name if host else registry.below(name))


@contextlib.asynccontextmanager
async def open_registry(
    url: str, *, username: str = "", password: str = "", environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Registry]:
    """A registry by its URL, or its host and port; `username` and `password` win over Docker's configuration.

    What names there begin with may follow. Without a scheme it is https, and http on this machine. Raises InvalidValue,
    HelperFailed.
    """
    async with Registry(url_of(url)) as registry:
        registry.sign_in(await login_of(registry.name, username=username, password=password, environ=environ))
        yield registry


async def login_of(
    registry: str, *, username: str = "", password: str = "", environ: Mapping[str, str] = os.environ
) -> Login:
    """Who is to be at a registry, by its host and port: as whom it is opened, and as whom nodes may pull from it.

    Raises InvalidValue, HelperFailed.
    """
    if password and not username:
        raise InvalidValue("username", "", "a name, where there is a password")
    return Login(username, password) if username else await login_for(registry, environ)


def url_of(text: str) -> str:
    """The URL of a registry that may be named by its host and port alone."""
    if "://" in text:
        return text
    host = text.partition("/")[0]
    return f"{'http' if is_loopback(host.rpartition(':')[0] or host) else 'https'}://{text}"


def split(name: str) -> tuple[str, str]:
    """The registry that a name begins with, "" if it names none, and the rest."""
    first, slash, rest = name.partition("/")
    if not slash or not (first == "localhost" or "." in first or ":" in first):
        return "", name
    if first == _HUB:
        return _HUB_HOST, rest if "/" in rest else f"library/{rest}"
    return first, rest
