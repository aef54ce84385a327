"""What a kernel has in one namespace of a cluster, as it is made, found, changed and deleted through the API."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.attach import AttachStream, attached
from ramet.isolation.kubernetes.api.objects import Objects
from ramet.isolation.kubernetes.api.pod_status import ObservedPod, parse_status


class Change(NamedTuple):
    """A pod that has changed."""

    seen: ObservedPod
    is_gone: bool
    version: str


class Api:
    """One namespace. Made on a running event loop; close it."""

    def __init__(self, namespace: str, kubeconfig: os.PathLike[str] | str | None) -> None:
        self.namespace = namespace
        self._objects = Objects(kubeconfig, namespace)

    async def close(self) -> None:
        """Close all connections."""
        await self._objects.close()

    async def create_pod(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> ObservedPod:
        """Raises Taken, Forbidden, SpawnRefused for a quota, SandboxFailed if it is refused, Unreachable."""
        from lightkube.resources.core_v1 import Pod

        return parse_status(await self._objects.create(Pod, manifest, dry_run=dry_run))

    async def pod(self, name: str) -> ObservedPod:
        """Raises Missing, Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Pod

        return parse_status(await self._objects.get(Pod, name))

    async def patch_pod(self, name: str, patch: Mapping[str, Any]) -> None:
        """Merge into a pod's object. Raises Missing, Forbidden, Unreachable, Taken if the patch is of another one."""
        from lightkube.resources.core_v1 import Pod

        await self._objects.patch(Pod, name, patch)

    async def delete_pod(self, name: str, *, uid: str = "") -> None:
        """At once, without a grace; what is not there is no error.

        With `uid`, only a pod that has that. Raises Taken for any other, Forbidden, Unreachable.
        """
        known = {"uid": uid} if uid else {}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": known}
        await self._objects.delete_with(f"/api/v1/namespaces/{self.namespace}/pods/{name}", options)

    async def pods(self, selector: Mapping[str, str]) -> tuple[str, list[ObservedPod]]:
        """Pods with these labels, and the version from which changes can be watched. Raises Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Pod

        found = await self._objects.list(Pod, labels=selector)
        return found.version, [parse_status(each) for each in found.items]

    async def changes(self, selector: Mapping[str, str], version: str) -> AsyncIterator[Change]:
        """Pods with these labels as they change, until the API has had enough. Raises Stale, Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Pod

        async for kind, pod in self._objects.watch(Pod, labels=selector, version=version):
            assert pod.metadata is not None, "the API gives no pod without metadata"
            yield Change(parse_status(pod), kind == "DELETED", pod.metadata.resourceVersion or "")

    def attach(self, name: str, *, outputs: bool = True) -> AbstractAsyncContextManager[AttachStream]:
        """The streams of a pod's container, or its standard input alone.

        Raises NotYet, Forbidden, Unreachable, also while they are used.
        """
        return attached(self._objects.http, self.namespace, name, outputs=outputs)

    async def create_secret(self, manifest: Mapping[str, Any]) -> None:
        """Raises Taken, Forbidden, SandboxFailed, Unreachable."""
        from lightkube.resources.core_v1 import Secret

        await self._objects.create(Secret, manifest)

    async def patch_secret(self, name: str, patch: Mapping[str, Any]) -> None:
        """Raises Missing, Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Secret

        await self._objects.patch(Secret, name, patch)

    async def delete_secret(self, name: str) -> None:
        """Raises Forbidden, Unreachable; what is not there is no error."""
        from lightkube.resources.core_v1 import Secret

        await self._objects.delete(Secret, name)

    async def secrets(self, selector: Mapping[str, str]) -> list[ObservedPod]:
        """Secrets with these labels: their names and owners. Raises Forbidden, Unreachable."""
        from lightkube.resources.core_v1 import Secret

        return await self._marked(Secret, selector)

    async def ensure_policy(self, manifest: Mapping[str, Any]) -> None:
        """Have a NetworkPolicy there. Raises Forbidden, Unreachable."""
        from lightkube.resources.networking_v1 import NetworkPolicy

        await self._objects.ensure(NetworkPolicy, manifest)

    async def delete_policy(self, name: str) -> None:
        """Raises Forbidden, Unreachable; what is not there is no error."""
        from lightkube.resources.networking_v1 import NetworkPolicy

        await self._objects.delete(NetworkPolicy, name)

    async def policies(self, selector: Mapping[str, str]) -> list[ObservedPod]:
        """NetworkPolicies with these labels: their names and owners. Raises Forbidden, Unreachable."""
        from lightkube.resources.networking_v1 import NetworkPolicy

        return await self._marked(NetworkPolicy, selector)

    async def has_policy(self, name: str) -> bool:
        """Whether a NetworkPolicy is there; False, too, if nobody says. Raises Unreachable."""
        from lightkube.resources.networking_v1 import NetworkPolicy

        return await self._objects.has(NetworkPolicy, name)

    async def runtime_class(self, name: str) -> bool:
        """Whether the cluster has it; False, too, if nobody says. Raises Unreachable."""
        from lightkube.resources.node_v1 import RuntimeClass

        return await self._objects.has(RuntimeClass, name)

    async def may(self, verb: str, resource: str, *, subresource: str = "") -> bool:
        """Whether this kernel may do something here. Raises Unreachable."""
        return await self._objects.may(verb, resource, self.namespace, subresource=subresource)

    async def _marked(self, kind: type[Any], selector: Mapping[str, str]) -> list[ObservedPod]:
        """Objects that are no pods."""
        found = await self._objects.list(kind, labels=selector)
        return [
            ObservedPod(each.metadata.name, each.metadata.uid or "", (each.metadata.labels or {}).get(labels.OWNER, ""))
            for each in found.items
        ]
