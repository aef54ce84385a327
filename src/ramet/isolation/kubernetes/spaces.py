"""The namespaces of teams in a cluster, through its API: made with their bounds, found again, removed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ramet.core.errors import SandboxFailed
from ramet.core.policy import Grant
from ramet.core.reservation import Reservation
from ramet.isolation.kubernetes import bounds, labels
from ramet.isolation.kubernetes.api import Forbidden, Missing, Taken, _asked, _client, _config, _deleted, _listed, _made

if TYPE_CHECKING:
    from lightkube import AsyncClient

_ACCOUNT = "system:serviceaccount:"
_OVER_S = 60.0  #: how long a namespace of that name may take to go, before it can be made anew
_LOOK_S = 0.2
#: How long a right may take to be in force once it was given: each API server has to hear of it.
_GRANTED_S = 10.0


class Spaces:
    """On a running event loop; close it."""

    def __init__(self, kubeconfig: os.PathLike[str] | str | None, context: str | None) -> None:
        config = _config(kubeconfig, context)
        self._account = _account(config.user.token if config.user is not None else None)
        self._client: AsyncClient = _client(config, "default")

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def make(self, reservation: Reservation, *, place: str, owner: str, shared: Grant | None = None) -> str:
        """Have a namespace with this reservation's bounds, and its name; `shared` as of `bounds.quota`. Idempotent.

        A kernel that works as a service account gives itself there what it needs. Raises Forbidden, SandboxFailed,
        Unreachable.
        """
        from lightkube.resources.core_v1 import LimitRange, Namespace, ResourceQuota
        from lightkube.resources.rbac_authorization_v1 import RoleBinding

        await self._create(Namespace, bounds.namespace(reservation, place=place, owner=owner), place)
        if self._account is not None:
            for role in bounds.ROLES:
                await self._have(RoleBinding, bounds.binding(reservation, role, self._account))
        await self._have_soon(ResourceQuota, bounds.quota(reservation, shared))
        await self._have_soon(LimitRange, bounds.limit_range(reservation))
        name = bounds.name_of(reservation.name)
        if self._account is not None:
            await self._may_soon("create", "pods", name)
        return name

    async def copy_secret(self, name: str, source: str, to: str) -> None:
        """Have a namespace's Secret in another one as well. Raises SandboxFailed where there is none, Forbidden, …"""
        from lightkube.resources.core_v1 import Secret

        # By listing: the right to it is one that a kernel has.
        found = _listed(self._client.list(Secret, namespace=source, fields={"metadata.name": name}))
        there = [each async for each in found]
        if not there:
            raise SandboxFailed(f"there is no Secret {name} in namespace {source}, by which nodes are to pull images")
        metadata = {"name": name, "namespace": to, "labels": {labels.MANAGED: labels.OURS}}
        made = {"type": there[0].type, "data": there[0].data or {}, "metadata": metadata}
        await self._have(Secret, {"apiVersion": "v1", "kind": "Secret", **made})

    async def remove(self, name: str) -> None:
        """Remove a namespace with all in it; the cluster does so in its own time. Raises Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Namespace

        await _deleted(self._client.delete(Namespace, name, grace_period=0))

    async def known(self, place: str) -> list[str]:
        """The namespaces of teams that a place's kernels have made. Raises Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Namespace

        marks: dict[str, Any] = {labels.MANAGED: labels.OURS, labels.PLACE: place}
        found = _listed(self._client.list(Namespace, labels=marks))
        return [each.metadata.name or "" async for each in found if each.metadata is not None]

    async def _create(self, kind: Any, manifest: Mapping[str, Any], place: str) -> None:
        """Make a namespace, or find it as ours; one of before that is going is waited for."""
        name = manifest["metadata"]["name"]
        try:
            async with asyncio.timeout(_OVER_S):
                while True:
                    with contextlib.suppress(Taken):
                        await _asked(self._client.create(_made(kind, manifest)))
                        return
                    try:
                        there = await _asked(self._client.get(kind, name))
                    except Missing:  # It went in this moment.
                        continue
                    if (there.metadata.labels or {}).get(labels.PLACE) != place:
                        raise SandboxFailed(f"namespace {name} is there, and belongs to somebody else")
                    if there.status is None or there.status.phase != "Terminating":
                        return
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise SandboxFailed(f"namespace {name}, of an earlier team, has not gone within {_OVER_S:g} s") from None

    async def _have(self, kind: Any, manifest: Mapping[str, Any]) -> None:
        with contextlib.suppress(Taken):
            await _asked(self._client.create(_made(kind, manifest)))

    async def _have_soon(self, kind: Any, manifest: Mapping[str, Any]) -> None:
        """By a right that may have been given just now. Raises Forbidden if it is not in force within _GRANTED_S."""
        loop = asyncio.get_running_loop()
        until = loop.time() + (_GRANTED_S if self._account is not None else 0.0)
        while True:
            try:
                return await self._have(kind, manifest)
            except Forbidden:
                if loop.time() >= until:
                    raise
            await asyncio.sleep(_LOOK_S)

    async def _may_soon(self, verb: str, resource: str, namespace: str) -> None:
        """Wait until this kernel may do so there; who never may is told so by the probe. Raises Unreachable."""
        from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
        from lightkube.resources.authorization_v1 import SelfSubjectAccessReview

        asked = ResourceAttributes(namespace=namespace, verb=verb, resource=resource)
        review = SelfSubjectAccessReview(spec=SelfSubjectAccessReviewSpec(resourceAttributes=asked))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRANTED_S):
                while True:
                    status = (await _asked(self._client.create(review))).status
                    if status is not None and status.allowed:
                        return
                    await asyncio.sleep(_LOOK_S)


def _account(token: str | None) -> bounds.Account | None:
    """The service account that a token is of, if it is of one; nothing depends on its being genuine."""
    try:
        payload = (token or "").split(".")[1]
        subject = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
        space, name = subject.removeprefix(_ACCOUNT).split(":") if subject.startswith(_ACCOUNT) else ("", "")
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return bounds.Account(space, name) if space else None
