"""The typed client for this kernel's objects in one namespace: pods, Secrets and NetworkPolicies."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from ramet.isolation.kubernetes.api import labels
from ramet.isolation.kubernetes.api.attach import AttachStream, open_attach_stream
from ramet.isolation.kubernetes.api.objects import Objects
from ramet.isolation.kubernetes.api.pod_status import ObservedPod, parse_status


class Change(NamedTuple):
    """A change of a pod."""

    pod: ObservedPod
    is_gone: bool
    version: str


class Api:
    """The API client of one namespace. Create it on a running event loop; close it."""

    def __init__(self, namespace: str, kubeconfig: os.PathLike[str] | str | None) -> None:
        self.namespace = namespace
        self._objects = Objects(kubeconfig, namespace)
        # After that: it raises MissingExtra without the extra.
        from lightkube.resources.core_v1 import Pod, Secret
        from lightkube.resources.networking_v1 import NetworkPolicy
        from lightkube.resources.node_v1 import RuntimeClass

        self._pod, self._secret, self._policy, self._class = Pod, Secret, NetworkPolicy, RuntimeClass

    async def close(self) -> None:
        await self._objects.close()

    async def create_pod(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> ObservedPod:
        """Create a pod.

        Raises Taken, Forbidden, SpawnRefused for a quota, SandboxFailed if the API refuses the pod, Unreachable.
        """
        return parse_status(await self._objects.create(self._pod, manifest, dry_run=dry_run))

    async def pod(self, name: str) -> ObservedPod:
        """Return a pod. Raises Missing, Forbidden, Unreachable."""
        return parse_status(await self._objects.get(self._pod, name))

    async def patch_pod(self, name: str, patch: Mapping[str, Any]) -> None:
        """Merge a patch into a pod's object.

        Raises Missing, Forbidden, Unreachable, and Taken if the patch names another object or version.
        """
        await self._objects.patch(self._pod, name, patch)

    async def delete_pod(self, name: str, *, uid: str = "") -> None:
        """Delete a pod at once, without a grace period. A missing pod is no error.

        With `uid`, delete only the pod with that uid. Raises Taken for any other pod, Forbidden, Unreachable.
        """
        known = {"uid": uid} if uid else {}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": known}
        await self._objects.delete_with(f"/api/v1/namespaces/{self.namespace}/pods/{name}", options)

    async def pods(self, selector: Mapping[str, str]) -> tuple[str, list[ObservedPod]]:
        """Return the version from which changes can be watched, and the pods with these labels.

        Raises Forbidden, Unreachable.
        """
        listing = await self._objects.list(self._pod, labels=selector)
        return listing.version, [parse_status(each) for each in listing.items]

    async def changes(self, selector: Mapping[str, str], version: str) -> AsyncIterator[Change]:
        """Yield the changes of pods with these labels, until the API ends the watch.

        Raises Stale, Forbidden, Unreachable.
        """
        async for kind, pod in self._objects.watch(self._pod, labels=selector, version=version):
            observed_pod = parse_status(pod)
            yield Change(observed_pod, kind == "DELETED", observed_pod.version)

    def attach(self, name: str, *, outputs: bool = True) -> AbstractAsyncContextManager[AttachStream]:
        """Attach to the streams of a pod's container, or only to its standard input.

        Raises NotYet, Forbidden, Unreachable, also while the streams are used.
        """
        return open_attach_stream(self._objects.http, self.namespace, name, outputs=outputs)

    async def create_secret(self, manifest: Mapping[str, Any]) -> None:
        """Create a Secret. Raises Taken, Forbidden, SandboxFailed, Unreachable."""
        await self._objects.create(self._secret, manifest)

    async def patch_secret(self, name: str, patch: Mapping[str, Any]) -> None:
        """Merge a patch into a Secret. Raises Missing, Forbidden, Unreachable."""
        await self._objects.patch(self._secret, name, patch)

    async def delete_secret(self, name: str) -> None:
        """Delete a Secret. A missing Secret is no error. Raises Forbidden, Unreachable."""
        await self._objects.delete(self._secret, name)

    async def secrets(self, selector: Mapping[str, str]) -> list[ObservedPod]:
        """Return the names and owners of the Secrets with these labels. Raises Forbidden, Unreachable."""
        return await self._list_marked_objects(self._secret, selector)

    async def ensure_policy(self, manifest: Mapping[str, Any]) -> None:
        """Create a NetworkPolicy unless it exists. Raises Forbidden, Unreachable."""
        await self._objects.ensure(self._policy, manifest)

    async def delete_policy(self, name: str) -> None:
        """Delete a NetworkPolicy. A missing policy is no error. Raises Forbidden, Unreachable."""
        await self._objects.delete(self._policy, name)

    async def policies(self, selector: Mapping[str, str]) -> list[ObservedPod]:
        """Return the names and owners of the NetworkPolicies with these labels. Raises Forbidden, Unreachable."""
        return await self._list_marked_objects(self._policy, selector)

    async def has_policy(self, name: str) -> bool:
        """Check whether a NetworkPolicy exists; False, too, if the API may not be asked. Raises Unreachable."""
        return await self._objects.has(self._policy, name)

    async def runtime_class(self, name: str) -> bool:
        """Check whether the cluster has a RuntimeClass; False, too, if the API may not be asked.

        Raises Unreachable.
        """
        return await self._objects.has(self._class, name)

    async def may(self, verb: str, resource: str, *, subresource: str = "") -> bool:
        """Check whether this kernel may do something in this namespace. Raises Unreachable."""
        return await self._objects.may(verb, resource, self.namespace, subresource=subresource)

    async def _list_marked_objects(self, kind: type[Any], selector: Mapping[str, str]) -> list[ObservedPod]:
        """Return objects that are not pods, with their names, uids and owners."""
        listing = await self._objects.list(kind, labels=selector)
        return [
            ObservedPod(each.metadata.name, each.metadata.uid or "", (each.metadata.labels or {}).get(labels.OWNER, ""))
            for each in listing.items
        ]
