"""Generic access to objects of any kind through the cluster's API. Only this module uses the client's requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from yaml import YAMLError

from ramet.core.errors import InvalidValue
from ramet.disk.installation import missing_extra
from ramet.isolation.kubernetes.api.errors import ApiConflict, Forbidden, Missing, translate_errors

if TYPE_CHECKING:
    import httpx2
    from lightkube import AsyncClient
    from lightkube.config.kubeconfig import SingleConfig

T = TypeVar("T")

_CALL_S = 10.0
#: A watch is requested again after this time, so that a lost connection does not block it forever.
_WATCH_S = 45


class Listing(NamedTuple, Generic[T]):
    """The objects that a list request returned."""

    version: str  #: the version from which changes can be watched
    items: list[T]


class Objects:
    """The objects of one namespace, for kinds that have one. Create it on a running event loop; close it.

    Each request raises Forbidden, Unreachable, SandboxFailed if the API refuses it, and the errors that its method
    names.
    """

    def __init__(self, kubeconfig: os.PathLike[str] | str | None, namespace: str) -> None:
        """Open the client. Raises InvalidValue if the cluster is not configured as for kubectl, MissingExtra."""
        #: Any: the client's overloads, for kinds with and without a namespace, accept no type that may be either.
        self._config, self._client = _open_client(kubeconfig, namespace)
        self._http: httpx2.AsyncClient | None = None

    @property
    def token(self) -> str | None:
        """The token that authenticates the kernel, if it uses one."""
        return None if self._config.user is None else self._config.user.token

    @property
    def http(self) -> httpx2.AsyncClient:
        """The HTTP client for streams that stay open, without a limit of connections.

        It also sends requests that the API client cannot express.
        """
        if self._http is None:
            self._http = _http(self._config)
        return self._http

    async def close(self) -> None:
        await self._client.close()
        if self._http is not None:
            await self._http.aclose()

    async def create(self, kind: type[T], manifest: Mapping[str, Any], *, dry_run: bool = False) -> T:
        """Create an object. Raises Taken, SpawnRefused for a quota."""
        with translate_errors():
            created: T = await self._client.create(_resource_of(kind, manifest), dry_run=dry_run)
        return created

    async def ensure(self, kind: type[Any], manifest: Mapping[str, Any]) -> None:
        """Create an object unless it exists; an existing object stays unchanged."""
        with contextlib.suppress(ApiConflict):
            await self.create(kind, manifest)

    async def get(self, kind: type[T], name: str) -> T:
        """Return an object. Raises Missing."""
        with translate_errors():
            resource: T = await self._client.get(kind, name)
        return resource

    async def has(self, kind: type[Any], name: str) -> bool:
        """Check whether an object exists; False, too, if the kernel may not ask."""
        try:
            await self.get(kind, name)
        except (Missing, Forbidden):
            return False
        return True

    async def patch(self, kind: type[Any], name: str, patch: Mapping[str, Any]) -> None:
        """Merge a patch into an object. Raises Missing, and Taken if the patch names another object or version."""
        with translate_errors():
            await self._client.patch(kind, name, dict(patch))

    async def delete(self, kind: type[Any], name: str, *, grace_s: int | None = None) -> None:
        """Delete an object. A missing object is no error."""
        with contextlib.suppress(Missing), translate_errors():
            await self._client.delete(kind, name, grace_period=grace_s)

    async def delete_with(self, path: str, options: Mapping[str, Any]) -> None:
        """Delete an object with `DeleteOptions`. A missing object is no error.

        The client library does not support these options. Raises Taken if the object does not satisfy their
        preconditions.
        """
        from lightkube import ApiError

        with contextlib.suppress(Missing), translate_errors():
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
        """Return the objects that have all of these labels and fields."""
        response = self._client.list(kind, labels=labels, fields=fields, namespace=namespace)
        with translate_errors():
            items = [each async for each in response]
            return Listing(response.resourceVersion, items)

    async def watch(self, kind: type[T], *, labels: Mapping[str, str], version: str) -> AsyncIterator[tuple[str, T]]:
        """Yield the kind of change and the object for objects with these labels. Raises Stale.

        The iteration ends when the API ends the watch, or when nothing has arrived for too long.
        """
        from lightkube.types import on_error_raise

        watch = self._client.watch(
            kind, labels=labels, resource_version=version, server_timeout=_WATCH_S, on_error=on_error_raise
        )
        while True:
            try:
                async with asyncio.timeout(_WATCH_S + _CALL_S):
                    with translate_errors():
                        each = await anext(watch)
            except (TimeoutError, StopAsyncIteration):
                return
            yield each

    async def may(self, verb: str, resource: str, namespace: str, *, subresource: str = "") -> bool:
        """Check whether this kernel may do something in a namespace."""
        from lightkube.resources.authorization_v1 import SelfSubjectAccessReview

        attributes = {"namespace": namespace, "verb": verb, "resource": resource, "subresource": subresource or None}
        review = await self.create(SelfSubjectAccessReview, {"spec": {"resourceAttributes": attributes}})
        return review.status is not None and review.status.allowed


def _resource_of(kind: type[T], manifest: Mapping[str, Any]) -> T:
    """Return an object of the client library; the type of `from_dict` there is not precise."""
    resource: T = kind.from_dict(dict(manifest))  # type: ignore[attr-defined]
    return resource


def _open_client(kubeconfig: os.PathLike[str] | str | None, namespace: str) -> tuple[SingleConfig, Any]:
    """Read a kubeconfig file, and create a client for it. Raises InvalidValue, MissingExtra."""
    try:
        from lightkube import KubeConfig
        from lightkube.core.exceptions import ConfigError
    except ImportError as error:
        raise missing_extra("the backend 'kubernetes'", "kubernetes") from error
    file = None if kubeconfig is None else Path(kubeconfig).expanduser()
    try:
        config = (KubeConfig.from_env() if file is None else KubeConfig.from_file(file)).get()
        assert config is not None, "no default was given"
        if urlsplit(config.cluster.server).scheme not in ("http", "https"):
            raise ConfigError(f"the server {config.cluster.server!r} is not a URL")
        return config, _client(config, namespace)
    # lightkube does not validate the file, so a wrong value raises whatever its use raises.
    except (ConfigError, OSError, LookupError, ValueError, TypeError, AttributeError, YAMLError) as error:
        accepted = "a file as kubectl reads it, with a current context, or a service account of a pod"
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InvalidValue("kubeconfig", kubeconfig and str(kubeconfig), f"{accepted} ({reason})") from None


def _client(config: SingleConfig, namespace: str) -> AsyncClient:
    import httpx2
    from lightkube import AsyncClient

    return AsyncClient(config, namespace=namespace, timeout=httpx2.Timeout(_CALL_S))


def _http(config: SingleConfig) -> httpx2.AsyncClient:
    import httpx2
    from lightkube.config.client_adapter import ConnectionParams

    params = ConnectionParams(timeout=httpx2.Timeout(_CALL_S)).httpx_params(config)
    return httpx2.AsyncClient(**params, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=4))
