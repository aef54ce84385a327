"""Safety policies in a store: each change is a new version, made by compare-and-swap; old ones stay to be looked up."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import checked_name
from ramet.core.safety import SafetyPolicy, decode, encode
from ramet.store.contract import DocumentWrite, Store

POLICY = "safety_policy"  #: the kind of documents that hold the newest version
PAST = "safety_policy_version"  #: and every version, by its number


class PolicyVersion(NamedTuple):
    """A policy as it was when it was read. Version 0 is one that is in no store."""

    name: str
    version: int
    policy: SafetyPolicy


class PolicySource(Protocol):
    """Where a gate reads the policy for each call."""

    @property
    def name(self) -> str: ...
    async def read(self) -> PolicyVersion:
        """The policy that holds now. Whatever this raises blocks the call."""


class FixedPolicy:
    """One policy, which never changes."""

    name = "fixed"

    def __init__(self, policy: SafetyPolicy) -> None:
        self._pinned = PolicyVersion(self.name, 0, policy)

    async def read(self) -> PolicyVersion:
        """It."""
        return self._pinned


class SafetyPolicies:
    """The policies of a store that is open, by name. Nothing removes one, so versions are never used again."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, name: str, version: int | None = None) -> PolicyVersion:
        """The newest version, or the one of that number. Raises Unknown, and InvalidValue for what is no policy."""
        if version is None:
            found = await self._store.get(POLICY, checked_name("name", name))
        else:
            found = await self._store.get(PAST, _past(checked_name("name", name), version))
        if found is None:
            raise Unknown("safety policy", name if version is None else f"{name} of version {version}")
        return PolicyVersion(name, found.version if version is None else version, decode(found.data))

    async def put(self, name: str, policy: SafetyPolicy, *, expected: int) -> PolicyVersion:
        """Make it the newest version; `expected` is the one that it follows, 0 for the first. Durable on return.

        Calls whose intention is on record are decided by the version that is pinned there. Raises Conflict if another
        version is the newest: nothing was written then.
        """
        if not isinstance(policy, SafetyPolicy):
            raise InvalidValue("policy", policy, "a SafetyPolicy")
        if not isinstance(expected, int) or isinstance(expected, bool) or expected < 0:
            raise InvalidValue("expected", expected, "the version that this one follows, 0 for none")
        data, version = encode(policy), expected + 1
        newest = DocumentWrite(POLICY, checked_name("name", name), data, expected)
        await self._store.put_together((), (newest, DocumentWrite(PAST, _past(name, version), data, 0)))
        return PolicyVersion(name, version, policy)

    def named(self, name: str) -> StoredPolicy:
        """The policy of that name, for a gate: read anew for each call."""
        return StoredPolicy(self, checked_name("name", name))


class StoredPolicy:
    """One policy of a store."""

    def __init__(self, policies: SafetyPolicies, name: str) -> None:
        self._policies, self.name = policies, name

    async def read(self) -> PolicyVersion:
        """Its newest version."""
        return await self._policies.get(self.name)


def _past(name: str, version: int) -> str:
    return f"{name}/{version:012d}"
