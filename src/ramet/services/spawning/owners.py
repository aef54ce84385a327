"""Who owns an agent, and which narrower keys its owner gave away: changed one after the other, on record first."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.core.errors import InvalidValue, NotYours
from ramet.services.contract import RIGHTS, Delegate, DelegatedKey
from ramet.services.spawning import keys
from ramet.services.spawning.roster import Admitted, Living, Roster


class Owners:
    """Changes the keys of the agents of a roster."""

    def __init__(self, roster: Roster, clock: Clock, entropy: Callable[[int], bytes]) -> None:
        self._roster, self._clock, self._entropy = roster, clock, entropy

    async def delegate(self, agent: str, key: str, asked: Delegate) -> DelegatedKey:
        """Make a narrower key, or hand over the ownership, by which every older key dies."""
        new = keys.new_key("agent", self._entropy)
        hash = keys.hash_of(new)
        if asked.owner:
            if asked.rights or asked.seconds is not None:
                raise InvalidValue("owner", True, "neither rights nor seconds: an owner has all, for good")
            await self._change(agent, key, lambda _, ring: keys.transfer(ring, hash), owner=True)
            return DelegatedKey(keys.OWNER, new, RIGHTS)
        id = f"key-{self._entropy(8).hex()}"

        def delegate(by: str, ring: keys.Keyring) -> keys.Keyring:
            now = self._clock.now()
            return keys.delegate(ring, id=id, hash=hash, rights=asked.rights, seconds=asked.seconds, by=by, now=now)

        ring = await self._change(agent, key, delegate)
        return DelegatedKey(id, new, ring.delegated[-1].rights)

    async def revoke(self, agent: str, key: str, key_id: str) -> None:
        """Let a narrower key open nothing any more, nor those that it made."""
        await self._change(agent, key, lambda by, ring: keys.revoke(ring, key_id, by=by))

    async def rotate(self, agent: str, key: str) -> str:
        """Another key for the same owner."""
        new = keys.new_key("agent", self._entropy)
        await self._change(agent, key, lambda _, ring: keys.rotate(ring, keys.hash_of(new)), owner=True)
        return new

    def owned(self, agent: str, key: str) -> Living:
        """The agent, for its full owner and for the operator. Raises NotYours."""
        return self._admitted(agent, key, owner=True).living

    async def _change(
        self, agent: str, key: str, step: Callable[[str, keys.Keyring], keys.Keyring], *, owner: bool = False
    ) -> keys.Keyring:
        """Change a ring by a key that opens it when it is its turn: of two who hand over, the second has nothing."""
        async with self._admitted(agent, key, owner=owner).living.changing:
            living, held, _ = self._admitted(agent, key, owner=owner)
            ring = step(held.id, living.row.keys)
            await living.write(replace(living.row, keys=ring))
            return ring

    def _admitted(self, agent: str, key: str, *, owner: bool) -> Admitted:
        admitted = self._roster.admitted(agent, key, "delegate")
        if (owner and admitted.key.id != keys.OWNER) or admitted.living.ending is not None:
            raise NotYours("agent", agent)
        return admitted
