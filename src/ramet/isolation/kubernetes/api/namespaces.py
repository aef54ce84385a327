"""The namespaces of teams in a cluster, through its API: created with their limits, found, and removed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from ramet.core.errors import SandboxFailed
from ramet.core.policy.policy import Grant
from ramet.core.policy.reservation import Reservation
from ramet.isolation.kubernetes.api import labels, quotas
from ramet.isolation.kubernetes.api.errors import ApiConflict, Forbidden, Missing
from ramet.isolation.kubernetes.api.objects import Objects

_ACCOUNT = "system:serviceaccount:"
_DELETION_S = 60.0  #: how long the deletion of a namespace may take before its name can be used again
_LOOK_S = 0.2
#: How long a new right may take to be in force: it must reach each API server.
_GRANTED_S = 10.0


class Spaces:
    """The client for namespaces of teams. Create it on a running event loop; close it."""

    def __init__(self, kubeconfig: os.PathLike[str] | str | None) -> None:
        self._objects = Objects(kubeconfig, "default")
        self._account = _account(self._objects.token)
        # After that: it raises MissingExtra without the extra.
        from lightkube.resources.core_v1 import LimitRange, Namespace, ResourceQuota, Secret
        from lightkube.resources.rbac_authorization_v1 import RoleBinding

        self._namespace, self._secret, self._quota = Namespace, Secret, ResourceQuota
        self._limit_range, self._binding = LimitRange, RoleBinding

    async def close(self) -> None:
        await self._objects.close()

    async def make(self, reservation: Reservation, *, place: str, owner: str, shared: Grant | None = None) -> str:
        """Create a namespace with the limits of this reservation, and return its name. Idempotent.

        `shared` as in `quotas.quota`. A kernel that uses a service account gives itself the roles that it needs there.
        Raises Forbidden, SandboxFailed, Unreachable.
        """
        await self._create(quotas.namespace(reservation, place=place, owner=owner), place)
        if self._account is not None:
            for role in quotas.ROLES:
                await self._objects.ensure(self._binding, quotas.binding(reservation, role, self._account))
        await self._have_soon(self._quota, quotas.quota(reservation, shared))
        await self._have_soon(self._limit_range, quotas.limit_range(reservation))
        name = quotas.name_of(reservation.name)
        if self._account is not None:
            await self._may_soon(name)
        return name

    async def copy_secret(self, name: str, source: str, namespace: str) -> None:
        """Copy a Secret of a namespace into another one. Raises SandboxFailed if there is none, Forbidden, …"""
        # A kernel has the right to list Secrets, but not to get one.
        secrets = (await self._objects.list(self._secret, namespace=source, fields={"metadata.name": name})).items
        if not secrets:
            raise SandboxFailed(f"namespace {source} has no Secret {name}, which nodes need to pull images")
        metadata = {"name": name, "namespace": namespace, "labels": {labels.MANAGED: labels.OURS}}
        fields = {"type": secrets[0].type, "data": secrets[0].data or {}, "metadata": metadata}
        await self._objects.ensure(self._secret, {"apiVersion": "v1", "kind": "Secret", **fields})

    async def remove(self, name: str) -> None:
        """Delete a namespace and all its objects; the cluster does so asynchronously.

        Raises Forbidden, Unreachable.
        """
        await self._objects.delete(self._namespace, name, grace_s=0)

    async def list_team_namespaces(self, place: str) -> list[str]:
        """Return the team namespaces that kernels of a place have created. Raises Forbidden, Unreachable."""
        listing = await self._objects.list(self._namespace, labels={labels.MANAGED: labels.OURS, labels.PLACE: place})
        return [each.metadata.name or "" for each in listing.items if each.metadata is not None]

    async def _create(self, manifest: Mapping[str, Any], place: str) -> None:
        """Create a namespace, or accept an existing one of this place.

        Wait for the end of an earlier namespace that is being deleted.
        """
        name = manifest["metadata"]["name"]
        try:
            async with asyncio.timeout(_DELETION_S):
                while True:
                    with contextlib.suppress(ApiConflict):
                        await self._objects.create(self._namespace, manifest)
                        return
                    try:
                        existing = await self._objects.get(self._namespace, name)
                    except Missing:  # Its deletion has just completed.
                        continue
                    assert existing.metadata is not None, "the API gives no namespace without metadata"
                    if (existing.metadata.labels or {}).get(labels.PLACE) != place:
                        raise SandboxFailed(f"namespace {name} exists, and belongs to another owner")
                    if existing.status is None or existing.status.phase != "Terminating":
                        return
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise SandboxFailed(
                f"namespace {name} of an earlier team was not deleted within {_DELETION_S:g} s"
            ) from None

    async def _have_soon(self, kind: Any, manifest: Mapping[str, Any]) -> None:
        """Create an object with a right that may be new.

        Raises Forbidden if the right is not in force within _GRANTED_S.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (_GRANTED_S if self._account is not None else 0.0)
        while True:
            try:
                return await self._objects.ensure(kind, manifest)
            except Forbidden:
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(_LOOK_S)

    async def _may_soon(self, namespace: str) -> None:
        """Wait until this kernel may create pods in a namespace, at most _GRANTED_S. Raises Unreachable.

        If it never may, the probe reports that.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRANTED_S):
                while True:
                    if await self._objects.may("create", "pods", namespace):
                        return
                    await asyncio.sleep(_LOOK_S)


def _account(token: str | None) -> quotas.Account | None:
    """Return the service account of a token, if it belongs to one. The token's signature is not checked."""
    try:
        payload = (token or "").split(".")[1]
        subject = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["sub"]
        space, name = subject.removeprefix(_ACCOUNT).split(":") if subject.startswith(_ACCOUNT) else ("", "")
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return quotas.Account(space, name) if space else None
