"""The probe of a namespace: it asks for rights, and has the API validate a pod without creating one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from ramet.core.errors import RametError, SpawnRefused
from ramet.core.policy.policy import Isolation
from ramet.isolation.contract import Probe
from ramet.isolation.kubernetes.api import manifest
from ramet.isolation.kubernetes.api.client import Api
from ramet.isolation.kubernetes.api.errors import Forbidden, Missing, Unreachable

#: The rights that are needed, by the mechanism's name: verb, resource, subresource.
_NEEDED = {
    "pods_create": ("create", "pods", ""),
    "pods_delete": ("delete", "pods", ""),
    "pods_get": ("get", "pods", ""),
    "pods_list": ("list", "pods", ""),
    "pods_patch": ("patch", "pods", ""),
    "pods_watch": ("watch", "pods", ""),
}
#: Attaching over a WebSocket is a GET. Older API servers check it as "get", newer ones as "create", too.
_ATTACH = {"attach_create": ("create", "pods", "attach"), "attach_get": ("get", "pods", "attach")}
NAMESPACE, API = "namespace", "api"  #: missing mechanisms if the namespace does not exist, or the API does not answer
_SECRETS = {f"secrets_{verb}": (verb, "secrets", "") for verb in ("create", "delete", "list", "patch")}


class ProbeResult(NamedTuple):
    """The result of a probe, and whether it is final."""

    probe: Probe
    is_final: bool = True


async def probe(
    api: Api,
    trial: Mapping[str, Any],
    classes: Mapping[Isolation, str],
    way_out: Mapping[str, Any] | None = None,
) -> ProbeResult:
    """Probe the namespace. The API validates the pod `trial` without creating it, and looks up `classes`.

    `way_out` is a policy that lets this kernel's agents reach the kernel.
    """
    try:
        rights = {**_NEEDED, **_ATTACH, **_SECRETS}
        answers = await asyncio.gather(
            *(api.may(verb, resource, subresource=subresource) for verb, resource, subresource in rights.values())
        )
        mechanisms = dict(zip(rights, answers, strict=True))
        refusal = await _refusal(api, trial) if all(mechanisms.values()) else None
        is_nowhere = isinstance(refusal, Missing)  # Of all names in the manifest, only the namespace is looked up.
        mechanisms["pod_admitted"] = all(mechanisms.values()) and refusal is None
        mechanisms["network_policy"] = mechanisms["pod_admitted"] and await _ensure_policies(api, way_out)
        has = {level: await api.runtime_class(name) for level, name in classes.items()}
    except Unreachable as problem:
        unreachable = Probe(Isolation.L0, {API: False}, (API,), f"{problem}; see that the API server can be reached")
        return ProbeResult(unreachable, is_final=False)
    missing = [name for name, works in mechanisms.items() if not works]
    mechanisms |= {f"runtime_class_{level}": exists for level, exists in has.items()} | {NAMESPACE: not is_nowhere}
    remedy = _remedy(api.namespace, missing, refusal)
    works = not [name for name in missing if name != "network_policy"]
    levels = [Isolation.L2, *(level for level, exists in has.items() if exists)]
    level = max(levels, key=lambda each: each.rank) if works else Isolation.L0
    missing_classes = [f"runtime_class_{each}" for each, exists in has.items() if not exists]
    if missing_classes and not remedy:
        names = ", ".join(classes[each] for each, exists in has.items() if not exists)
        remedy = f"install the runtime of RuntimeClass {names}, or list the available ones in runtime_classes"
    return ProbeResult(Probe(level, mechanisms, (*missing, *missing_classes), remedy, remote=True))


async def _refusal(api: Api, trial: Mapping[str, Any]) -> RametError | None:
    """Return the reason why the API would reject a pod. A quota that is used up now is no reason."""
    try:
        await api.create_pod(trial, dry_run=True)
    except (Unreachable, SpawnRefused) as problem:
        if isinstance(problem, Unreachable):
            raise
    except RametError as problem:
        return problem
    return None


async def _ensure_policies(api: Api, way_out: Mapping[str, Any] | None) -> bool:
    """Return whether network policies keep the namespace's agents off the network. Create missing policies."""
    policies = [manifest.network_policy(api.namespace), *([] if way_out is None else [way_out])]
    for each in policies:
        try:
            await api.ensure_policy(each)
        except (Forbidden, Missing):
            if not await api.has_policy(each["metadata"]["name"]):
                return False
    return True


def _remedy(namespace: str, missing: list[str], refusal: RametError | None) -> str:
    if refusal is not None:
        return f"the API accepts no pods of this kernel in namespace {namespace}: {refusal}"
    rights = [name for name in missing if name not in ("pod_admitted", "network_policy")]
    if rights:
        rights_text = ", ".join(rights)
        return f"give the kernel's account these rights in namespace {namespace}: {rights_text}; deploy/base has them"
    if "network_policy" in missing:
        return f"make the NetworkPolicy {manifest.POLICY} in namespace {namespace}, or let the kernel make it"
    return ""
