"""What dead kernels of a place left in a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from ramet.isolation.kubernetes import labels
from ramet.isolation.kubernetes.api import Api, Forbidden
from ramet.isolation.kubernetes.presence import Presence
from ramet.isolation.kubernetes.seen import Seen


async def reap(
    api: Api,
    presence: Presence,
    place: str,
    owner_of: Callable[[str], str],
    living: Callable[[], Awaitable[Collection[str]]] | None,
) -> Sequence[str]:
    """Delete it, and say what. `living` asks which kernels live; None: those whose locks are held here."""
    selector = labels.selector(place=place)
    # Listed before it is asked who lives: a kernel that comes up in between has nothing in the list.
    (_, pods), secrets, policies = await asyncio.gather(
        api.pods(selector), api.secrets(selector), _policies(api, selector)
    )
    dead: list[str] = []
    if living is None:
        known = presence.known()
        dead = [each for each in known if not presence.lives(each)]
        kernels = set(known).difference(dead)
    else:
        kernels = set(await living())
    owners = {owner_of(each) for each in kernels}
    left = [each for each in pods if each.owner not in owners]
    orphans = [each for each in secrets if each.owner not in owners]
    dead_ends = [each for each in policies if each.owner not in owners]
    await asyncio.gather(
        *(api.delete_pod(each.name) for each in left),
        *(api.delete_secret(each.name) for each in orphans),
        *(api.delete_policy(each.name) for each in dead_ends),
    )
    for each in dead:
        presence.forget(each)
    return [
        *(f"pod {each.name}" for each in left),
        *(f"secret {each.name}" for each in orphans),
        *(f"policy {each.name}" for each in dead_ends),
    ]


async def _policies(api: Api, selector: Mapping[str, str]) -> list[Seen]:
    """Those of kernels; none where nobody may see them. They select only pods of a kernel that is gone."""
    try:
        return await api.policies(selector)
    except Forbidden:
        return []
