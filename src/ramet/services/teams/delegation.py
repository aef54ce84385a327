"""The owners of agents, and the narrower keys that they delegated: changed one after the other, and recorded first."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from ramet.concurrency.clock import Clock
from ramet.core.errors import InvalidValue, NotYours
from ramet.services.contract import RIGHTS, Delegate, DelegatedKey
from ramet.services.teams import keys
from ramet.services.teams.agents import AgentAccess, AgentEntry, AgentTable


class Owners:
    """The changes of the keys of the agents of a table."""

    def __init__(self, agents: AgentTable, clock: Clock, entropy: Callable[[int], bytes]) -> None:
        self._agents, self._clock, self._entropy = agents, clock, entropy

    async def delegate(
        self, agent: str, key: str, request: Delegate, entropy: Callable[[int], bytes] | None = None
    ) -> DelegatedKey:
        """Make a narrower key, or transfer the ownership, which invalidates every older key.

        Raises NotYours, InvalidValue. With an `entropy`, the key is derived from it; a key that was made from it before
        is returned again.
        """
        entropy, is_again = entropy or self._entropy, entropy is not None
        new_key = keys.new_key("agent", entropy)
        hash = keys.hash_of(new_key)
        if is_again and (existing_key := self._made_before(agent, new_key)) is not None:
            return DelegatedKey(existing_key.id, new_key, existing_key.rights)
        if request.owner:
            if request.rights or request.seconds is not None:
                raise InvalidValue("owner", True, "neither rights nor seconds: an owner has all rights permanently")
            await self._change(agent, key, lambda _, ring: keys.transfer(ring, hash), owner=True)
            return DelegatedKey(keys.OWNER, new_key, RIGHTS)
        id = f"key-{entropy(8).hex()}"

        def delegate(by: str, ring: keys.Keyring) -> keys.Keyring:
            now = self._clock.now()
            return keys.delegate(ring, id=id, hash=hash, rights=request.rights, seconds=request.seconds, by=by, now=now)

        ring = await self._change(agent, key, delegate)
        return DelegatedKey(id, new_key, ring.delegated[-1].rights)

    async def revoke(self, agent: str, key: str, key_id: str) -> None:
        """Revoke a narrower key, and all keys that it made. Raises NotYours, Unknown."""
        await self._change(agent, key, lambda by, ring: keys.revoke(ring, key_id, by=by))

    async def rotate(self, agent: str, key: str, entropy: Callable[[int], bytes] | None = None) -> str:
        """Make a new key for the owner. The old key is invalid, narrower keys stay. Raises NotYours.

        With an `entropy`, the key is derived from it; a key that was made from it before is returned again.
        """
        new_key = keys.new_key("agent", entropy or self._entropy)
        if entropy is not None and self._made_before(agent, new_key) is not None:
            return new_key
        await self._change(agent, key, lambda _, ring: keys.rotate(ring, keys.hash_of(new_key)), owner=True)
        return new_key

    def authorize_owner(self, agent: str, key: str) -> AgentEntry:
        """Return the agent, if the key is its owner's or the operator's. Raises NotYours."""
        return self._authorize(agent, key, owner=True).entry

    def _made_before(self, agent: str, new: str) -> keys.ValidKey | None:
        """Return the rights of a key that was made before; None if it was not made, or is not valid any more."""
        entry = next((each for each in self._agents if each.id == agent), None)
        return None if entry is None else keys.rights_of_hash(entry.row.keys, keys.hash_of(new), self._clock.now())

    async def _change(
        self, agent: str, key: str, step: Callable[[str, keys.Keyring], keys.Keyring], *, owner: bool = False
    ) -> keys.Keyring:
        """Change a keyring.

        The key is checked again under the lock: of two concurrent transfers, the second one is refused.
        """
        async with self._authorize(agent, key, owner=owner).entry.write_lock:
            access = self._authorize(agent, key, owner=owner)
            entry = access.entry
            ring = step(access.key.id, entry.row.keys)
            await entry.write(replace(entry.row, keys=ring))
            return ring

    def _authorize(self, agent: str, key: str, *, owner: bool) -> AgentAccess:
        access = self._agents.authorize(agent, key, "delegate")
        if (owner and access.key.id != keys.OWNER) or access.entry.end_task is not None:
            raise NotYours("agent", agent)
        return access
