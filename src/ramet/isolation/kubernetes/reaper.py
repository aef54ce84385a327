"""What dead kernels of a place left in a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from ramet.isolation.kubernetes import labels
from ramet.isolation.kubernetes.api import Api
from ramet.isolation.kubernetes.presence import Presence


async def reap(
    api: Api, presence: Presence, place: str, owner_of: Callable[[str], str], living: Collection[str] | None
) -> Sequence[str]:
    """Delete it, and say what. `living` are the owners that live; None: those whose locks are held here."""
    dead: list[str] = []
    if living is None:
        known = presence.known()
        dead = [each for each in known if not presence.lives(each)]
        living = {owner_of(each) for each in known if each not in dead}
    selector = labels.selector(place=place)
    (_, pods), secrets = await asyncio.gather(api.pods(selector), api.secrets(selector))
    left = [each for each in pods if each.owner not in living]
    orphans = [each for each in secrets if each.owner not in living]
    await asyncio.gather(
        *(api.delete_pod(each.name) for each in left), *(api.delete_secret(each.name) for each in orphans)
    )
    for each in dead:
        presence.forget(each)
    return [*(f"pod {each.name}" for each in left), *(f"secret {each.name}" for each in orphans)]
