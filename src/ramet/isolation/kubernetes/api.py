"""The API of one namespace of a cluster, as far as it is used here. The only module that knows the client."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ramet.core.errors import InvalidValue, MissingExtra, RametError, SandboxFailed, SpawnRefused
from ramet.isolation.kubernetes import labels
from ramet.isolation.kubernetes.manifest import CONTAINER
from ramet.isolation.kubernetes.seen import Seen, look

if TYPE_CHECKING:
    import httpx2
    from httpx2.websockets import AsyncWebSocketSession
    from lightkube import ApiError, AsyncClient
    from lightkube.config.kubeconfig import SingleConfig

T = TypeVar("T")

_SUBPROTOCOL = "v4.channel.k8s.io"
_PIECE = 32 * 1024  #: bytes of one message to an attached container
_MAX_MESSAGE = 1 << 20
_MESSAGES = 16  #: that were received, and wait for who reads them
_CALL_S = 10.0
#: A watch is asked anew this often: one that the network has forgotten is not waited for without end.
_WATCH_S = 45


class Unreachable(RametError):
    """The API does not answer, or not now: it may later."""


class Missing(RametError, LookupError):
    """What was asked for is not there."""


class Taken(RametError):
    """What was to be made is there already."""


class Forbidden(RametError):
    """The kernel may not do this in this namespace; in the API's words."""


class NotYet(RametError):
    """A container cannot be attached to, or not yet; in the API's words."""


class Stale(RametError):
    """What changed since then is not known any more: it has to be listed."""


class Change(NamedTuple):
    """A pod that has changed."""

    seen: Seen
    is_gone: bool
    version: str


class Api:
    """One namespace. Made on a running event loop; close it."""

    def __init__(self, namespace: str, kubeconfig: os.PathLike[str] | str | None, context: str | None) -> None:
        self.namespace = namespace
        self._config = _config(kubeconfig, context)
        self._client: AsyncClient = _client(self._config, namespace)
        #: Of attach streams, which stay open: no pool of a size. And of what the client cannot ask.
        self._http: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
        if self._http is not None:
            await self._http.aclose()

    async def create_pod(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Seen:
        """Raises Taken, Forbidden, SpawnRefused for a quota, SandboxFailed if it is refused, Unreachable."""
        from lightkube.resources.core_v1 import Pod

        pod: Pod = _made(Pod, manifest)
        return look(await _asked(self._client.create(pod, dry_run=dry_run)))

    async def pod(self, name: str) -> Seen:
        """Raises Missing, Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Pod

        return look(await _asked(self._client.get(Pod, name)))

    async def patch_pod(self, name: str, patch: Mapping[str, Any]) -> None:
        """Merge into a pod's object. Raises Missing, Forbidden, Unreachable, Taken if the patch is of another one."""
        from lightkube.resources.core_v1 import Pod

        await _asked(self._client.patch(Pod, name, dict(patch)))

    async def delete_pod(self, name: str, *, uid: str = "") -> None:
        """At once, without a grace; what is not there is no error.

        With `uid`, only a pod that has that. Raises Taken for any other, Forbidden, Unreachable.
        """
        known = {"uid": uid} if uid else {}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": known}
        await _deleted(self._delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}", options))

    async def create_secret(self, manifest: Mapping[str, Any]) -> None:
        """Raises Taken, Forbidden, SandboxFailed, Unreachable."""
        from lightkube.resources.core_v1 import Secret

        await _asked(self._client.create(_made(Secret, manifest)))

    async def patch_secret(self, name: str, patch: Mapping[str, Any]) -> None:
        """Raises Missing, Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Secret

        await _asked(self._client.patch(Secret, name, dict(patch)))

    async def delete_secret(self, name: str) -> None:
        """Raises Forbidden, Unreachable; what is not there is no error."""
        from lightkube.resources.core_v1 import Secret

        await _deleted(self._client.delete(Secret, name))

    async def secrets(self, selector: Mapping[str, str]) -> list[Seen]:
        """Secrets with these labels: their names and owners. Raises Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Secret

        found = []
        async for each in _listed(self._client.list(Secret, labels=dict(selector))):
            found.append(_named(each))
        return found

    async def pods(self, selector: Mapping[str, str]) -> tuple[str, list[Seen]]:
        """Pods with these labels, and the version from which changes can be watched. Raises Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Pod

        listing = self._client.list(Pod, labels=dict(selector))
        found = [look(each) async for each in _listed(listing)]
        return listing.resourceVersion, found

    async def changes(self, selector: Mapping[str, str], version: str) -> AsyncIterator[Change]:
        """Pods with these labels as they change, until the API has had enough. Raises Stale, Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Pod
        from lightkube.types import on_error_raise

        watch = self._client.watch(
            Pod, labels=dict(selector), resource_version=version, server_timeout=_WATCH_S, on_error=on_error_raise
        )
        async for kind, pod in _watched(watch):
            assert pod.metadata is not None, "the API gives no pod without metadata"
            yield Change(look(pod), kind == "DELETED", pod.metadata.resourceVersion or "")

    async def ensure_policy(self, manifest: Mapping[str, Any]) -> None:
        """Have a NetworkPolicy there. Raises Forbidden, Unreachable."""
        from lightkube.resources.networking_v1 import NetworkPolicy

        try:
            await _asked(self._client.create(_made(NetworkPolicy, manifest)))
        except Taken:
            pass

    async def delete_policy(self, name: str) -> None:
        """Raises Forbidden, Unreachable; what is not there is no error."""
        from lightkube.resources.networking_v1 import NetworkPolicy

        await _deleted(self._client.delete(NetworkPolicy, name))

    async def policies(self, selector: Mapping[str, str]) -> list[Seen]:
        """NetworkPolicies with these labels: their names and owners. Raises Forbidden, Unreachable."""
        from lightkube.resources.networking_v1 import NetworkPolicy

        return [_named(each) async for each in _listed(self._client.list(NetworkPolicy, labels=dict(selector)))]

    async def has_policy(self, name: str) -> bool:
        """Whether a NetworkPolicy is there; False, too, if nobody says. Raises Unreachable."""
        from lightkube.resources.networking_v1 import NetworkPolicy

        try:
            await _asked(self._client.get(NetworkPolicy, name))
        except (Missing, Forbidden):
            return False
        return True

    async def runtime_class(self, name: str) -> bool:
        """Whether the cluster has it; False, too, if nobody says. Raises Unreachable."""
        from lightkube.resources.node_v1 import RuntimeClass

        try:
            await _asked(self._client.get(RuntimeClass, name))
        except (Missing, Forbidden):
            return False
        return True

    async def may(self, verb: str, resource: str, *, subresource: str = "", group: str = "") -> bool:
        """Whether this kernel may do something here. Raises Unreachable."""
        from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
        from lightkube.resources.authorization_v1 import SelfSubjectAccessReview

        asked = ResourceAttributes(
            namespace=self.namespace, verb=verb, resource=resource, subresource=subresource or None, group=group or None
        )
        review = SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=asked))
        answer = await _asked(self._client.create(review))
        return answer.status is not None and answer.status.allowed

    async def _delete(self, path: str, options: Mapping[str, Any]) -> None:
        """The client has no way to say more of a deletion than its grace."""
        from lightkube import ApiError

        answer = await self._plain.request("DELETE", path, json=options)
        if not answer.is_success:
            raise ApiError(request=answer.request, response=answer)

    @property
    def _plain(self) -> httpx2.AsyncClient:
        if self._http is None:
            self._http = _http(self._config)
        return self._http

    @asynccontextmanager
    async def attach(self, name: str, *, outputs: bool = True) -> AsyncIterator[Stream]:
        """The streams of a pod's container, or its standard input alone.

        Raises NotYet, Forbidden, Unreachable, also while they are used.
        """
        out = "true" if outputs else "false"
        try:
            async with self._plain.websocket(
                f"/api/v1/namespaces/{self.namespace}/pods/{name}/attach",
                params={"container": CONTAINER, "stdin": "true", "stdout": out, "stderr": out},
                subprotocols=[_SUBPROTOCOL],
                max_message_size_bytes=_MAX_MESSAGE,
                queue_size=_MESSAGES,
                keepalive_ping_interval_seconds=None,  # What is said over it has signs of life of its own.
            ) as socket:
                yield Stream(socket)
        except BaseException as error:
            raise _attaching(error) from error


class Stream:
    """What goes to and comes from an attached container. Channels are numbered: 0 to 2 as descriptors, 3 is its end."""

    def __init__(self, socket: AsyncWebSocketSession) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        """To its standard input. Raises Unreachable."""
        with _unbroken():
            for at in range(0, len(data), _PIECE):
                await self._socket.send_bytes(b"\0" + data[at : at + _PIECE])

    async def receive(self) -> tuple[int, bytes]:
        """From which channel, and what. Raises Unreachable at its end."""
        with _unbroken():
            message = await self._socket.receive_bytes()
        return (message[0], message[1:]) if message else (0, b"")


@contextlib.contextmanager
def _unbroken() -> Iterator[None]:
    import anyio
    import httpx2
    from httpx2.websockets import HTTPXWSException

    try:
        yield
    except (HTTPXWSException, httpx2.HTTPError, OSError, anyio.EndOfStream, anyio.ClosedResourceError) as error:
        raise Unreachable(f"the attach stream has ended: {_said(error)}") from error


def _made(kind: type[T], manifest: Mapping[str, Any]) -> T:
    """An object of the client's; its own `from_dict` does not say of which type it is."""
    made: T = kind.from_dict(dict(manifest))  # type: ignore[attr-defined]
    return made


def _named(each: Any) -> Seen:
    """Of an object that is no pod."""
    return Seen(each.metadata.name, each.metadata.uid or "", (each.metadata.labels or {}).get(labels.OWNER, ""))


def _config(kubeconfig: os.PathLike[str] | str | None, context: str | None) -> SingleConfig:
    try:
        from lightkube import KubeConfig
        from lightkube.core.exceptions import ConfigError
    except ImportError as error:
        raise MissingExtra("the backend 'kubernetes'", "kubernetes") from error
    try:
        whole = KubeConfig.from_env() if kubeconfig is None else KubeConfig.from_file(Path(kubeconfig).expanduser())
        config = whole.get(context)
    except (ConfigError, OSError, KeyError) as error:
        field, value = ("context", context) if context else ("kubeconfig", kubeconfig and str(kubeconfig))
        accepted = "a file as kubectl reads it, with that context, or a service account of a pod"
        raise InvalidValue(field, value, f"{accepted} ({error})") from None
    assert config is not None, "no default was given"
    return config


def _client(config: SingleConfig, namespace: str) -> AsyncClient:
    import httpx2
    from lightkube import AsyncClient

    return AsyncClient(config, namespace=namespace, timeout=httpx2.Timeout(_CALL_S))


def _http(config: SingleConfig) -> httpx2.AsyncClient:
    import httpx2
    from lightkube.config.client_adapter import ConnectionParams

    params = ConnectionParams(timeout=httpx2.Timeout(_CALL_S)).httpx_params(config)
    return httpx2.AsyncClient(**params, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=4))


async def _asked(call: Awaitable[T]) -> T:
    import httpx2
    from lightkube import ApiError

    try:
        return await call
    except ApiError as error:
        raise _refusal(error) from error
    except (httpx2.HTTPError, OSError) as error:
        raise Unreachable(f"the API of the cluster does not answer: {_said(error)}") from error


async def _deleted(call: Awaitable[object]) -> None:
    with contextlib.suppress(Missing):
        await _asked(call)


async def _listed(items: AsyncIterable[T]) -> AsyncIterator[T]:
    import httpx2
    from lightkube import ApiError

    try:
        async for each in items:
            yield each
    except ApiError as error:
        raise _refusal(error) from error
    except (httpx2.HTTPError, OSError) as error:
        raise Unreachable(f"the API of the cluster does not answer: {_said(error)}") from error


async def _watched(items: AsyncIterable[T]) -> AsyncIterator[T]:
    """As `_listed`, and ends when nothing has come for so long that nobody may be there."""
    listed = _listed(items)
    while True:
        try:
            async with asyncio.timeout(_WATCH_S + _CALL_S):
                each = await anext(listed)
        except (TimeoutError, StopAsyncIteration):
            return
        yield each


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _refusal(error: ApiError) -> RametError:
    code, message = error.status.code or 0, (error.status.message or str(error))[:600]
    match code:
        case 404:
            return Missing(message)
        case 409:
            return Taken(message)
        case 410:
            return Stale(message)
        case 403 if "exceeded quota" in message or "LimitRanger" in message or " usage per " in message:
            return SpawnRefused("quota", message)
        case 401 | 403:
            return Forbidden(message)
        case 429 | 500 | 502 | 503 | 504:
            return Unreachable(message)
        case _:
            return SandboxFailed(f"the cluster refuses it: {message}")


def _attaching(error: BaseException) -> BaseException:
    """What it means that an attach stream could not be had, or broke; everything else as it was."""
    import httpx2
    from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError

    while isinstance(error, BaseExceptionGroup):  # The client's task group wraps what its body raises.
        error = error.exceptions[0]
    if isinstance(error, WebSocketUpgradeError):
        code = error.response.status_code
        if code in (401, 403):
            return Forbidden(f"this kernel may not attach to pods here (HTTP {code})")
        return NotYet(f"the API refuses the attach stream: HTTP {code}")
    if isinstance(error, (HTTPXWSException, httpx2.HTTPError, OSError)) and not isinstance(error, TimeoutError):
        return Unreachable(f"the API of the cluster does not answer: {_said(error)}")
    return error
