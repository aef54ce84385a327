"""The objects of a cluster, of whatever kind, through its API. The only module that knows how the client asks."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from yaml import YAMLError

from ramet.core.errors import InvalidValue, MissingExtra
from ramet.isolation.kubernetes.api.errors import Forbidden, Missing, Taken, translated

if TYPE_CHECKING:
    import httpx2
    from lightkube import AsyncClient
    from lightkube.config.kubeconfig import SingleConfig

T = TypeVar("T")

_CALL_S = 10.0
#: A watch is asked anew this often: one that the network has forgotten is not waited for without end.
_WATCH_S = 45


class Listing(NamedTuple, Generic[T]):
    """What was there."""

    version: str  #: from which changes can be watched
    items: list[T]


class Objects:
    """Those of one namespace, for kinds that have one. Made on a running event loop; close it.

    What is asked raises Forbidden, Unreachable, SandboxFailed if it is refused, and what is said there.
    """

    def __init__(self, kubeconfig: os.PathLike[str] | str | None, namespace: str) -> None:
        """Raises InvalidValue for a cluster that is not named as kubectl would, MissingExtra."""
        #: Its overloads, of kinds with and without a namespace, take no type that may be either.
        self._config, self._client = _opened(kubeconfig, namespace)
        self._http: httpx2.AsyncClient | None = None

    @property
    def token(self) -> str | None:
        """By which the kernel is known there, if it is by a token."""
        return None if self._config.user is None else self._config.user.token

    @property
    def http(self) -> httpx2.AsyncClient:
        """For streams, which stay open: no pool of a size. And for what the client cannot ask."""
        if self._http is None:
            self._http = _http(self._config)
        return self._http

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
        if self._http is not None:
            await self._http.aclose()

    async def create(self, kind: type[T], manifest: Mapping[str, Any], *, dry_run: bool = False) -> T:
        """Raises Taken, SpawnRefused for a quota."""
        with translated():
            created: T = await self._client.create(_made(kind, manifest), dry_run=dry_run)
        return created

    async def ensure(self, kind: type[Any], manifest: Mapping[str, Any]) -> None:
        """Have an object there; one that is there already stays as it is."""
        with contextlib.suppress(Taken):
            await self.create(kind, manifest)

    async def get(self, kind: type[T], name: str) -> T:
        """Raises Missing."""
        with translated():
            found: T = await self._client.get(kind, name)
        return found

    async def has(self, kind: type[Any], name: str) -> bool:
        """Whether an object is there; False, too, if nobody says."""
        try:
            await self.get(kind, name)
        except (Missing, Forbidden):
            return False
        return True

    async def patch(self, kind: type[Any], name: str, patch: Mapping[str, Any]) -> None:
        """Merge into an object. Raises Missing, Taken if the patch is of another one."""
        with translated():
            await self._client.patch(kind, name, dict(patch))

    async def delete(self, kind: type[Any], name: str, *, grace_s: int | None = None) -> None:
        """What is not there is no error."""
        with contextlib.suppress(Missing), translated():
            await self._client.delete(kind, name, grace_period=grace_s)

    async def delete_with(self, path: str, options: Mapping[str, Any]) -> None:
        """The same, with more to say of it than a grace: `DeleteOptions`. Raises Taken for what has not what they ask.

        The client has no way to.
        """
        from lightkube import ApiError

        with contextlib.suppress(Missing), translated():
            answer = await self.http.request("DELETE", path, json=options)
            if not answer.is_success:
                raise ApiError(request=answer.request, response=answer)

    async def list(
        self,
        kind: type[T],
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> Listing[T]:
        """Objects with all of these labels and fields."""
        found = self._client.list(kind, labels=labels, fields=fields, namespace=namespace)
        with translated():
            items = [each async for each in found]
        return Listing(found.resourceVersion, items)

    async def watch(self, kind: type[T], *, labels: Mapping[str, str], version: str) -> AsyncIterator[tuple[str, T]]:
        """Objects with these labels as they change, and how. Raises Stale.

        It ends when the API has had enough, or when nothing has come for so long that nobody may be there.
        """
        from lightkube.types import on_error_raise

        watch = self._client.watch(
            kind, labels=labels, resource_version=version, server_timeout=_WATCH_S, on_error=on_error_raise
        )
        while True:
            try:
                async with asyncio.timeout(_WATCH_S + _CALL_S):
                    with translated():
                        each = await anext(watch)
            except (TimeoutError, StopAsyncIteration):
                return
            yield each

    async def may(self, verb: str, resource: str, namespace: str, *, subresource: str = "") -> bool:
        """Whether this kernel may do something there."""
        from lightkube.resources.authorization_v1 import SelfSubjectAccessReview

        asked = {"namespace": namespace, "verb": verb, "resource": resource, "subresource": subresource or None}
        review = await self.create(SelfSubjectAccessReview, {"spec": {"resourceAttributes": asked}})
        return review.status is not None and review.status.allowed


def _made(kind: type[T], manifest: Mapping[str, Any]) -> T:
    """An object of the client's; its own `from_dict` does not say of which type it is."""
    made: T = kind.from_dict(dict(manifest))  # type: ignore[attr-defined]
    return made


def _opened(kubeconfig: os.PathLike[str] | str | None, namespace: str) -> tuple[SingleConfig, Any]:
    """What a file says, and a client that goes by it. Raises InvalidValue, MissingExtra."""
    try:
        from lightkube import KubeConfig
        from lightkube.core.exceptions import ConfigError
    except ImportError as error:
        raise MissingExtra("the backend 'kubernetes'", "kubernetes") from error
    file = None if kubeconfig is None else Path(kubeconfig).expanduser()
    try:
        config = (KubeConfig.from_env() if file is None else KubeConfig.from_file(file)).get()
        assert config is not None, "no default was given"
        if urlsplit(config.cluster.server).scheme not in ("http", "https"):
            raise ConfigError(f"the server {config.cluster.server!r} is no URL")
        return config, _client(config, namespace)
    # Whatever the file holds, lightkube takes it for what it should be, and fails as that goes.
    except (ConfigError, OSError, LookupError, ValueError, TypeError, AttributeError, YAMLError) as error:
        accepted = "a file as kubectl reads it, with a current context, or a service account of a pod"
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidValue("kubeconfig", kubeconfig and str(kubeconfig), f"{accepted} ({why})") from None


def _client(config: SingleConfig, namespace: str) -> AsyncClient:
    import httpx2
    from lightkube import AsyncClient

    return AsyncClient(config, namespace=namespace, timeout=httpx2.Timeout(_CALL_S))


def _http(config: SingleConfig) -> httpx2.AsyncClient:
    import httpx2
    from lightkube.config.client_adapter import ConnectionParams

    params = ConnectionParams(timeout=httpx2.Timeout(_CALL_S)).httpx_params(config)
    return httpx2.AsyncClient(**params, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=4))
