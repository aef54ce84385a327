"""Safety policies in a store: each change is a new version, made by compare-and-swap; old versions stay available."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.ids import checked_name
from ramet.core.safety import SafetyPolicy, decode, encode
from ramet.store.contract import DocumentWrite, Store

POLICY = "safety_policy"  #: the kind of the documents that hold the newest version
PAST = "safety_policy_version"  #: the kind of the documents that hold every version, by its number


class PolicyVersion(NamedTuple):
    """A policy as it was when it was read. Version 0 is a policy that is in no store."""

    name: str
    version: int
    policy: SafetyPolicy


class PolicySource(Protocol):
    """A source from which a gate reads the policy for each call."""

    @property
    def name(self) -> str: ...
    async def read(self) -> PolicyVersion:
        """Return the present policy. Any exception blocks the call."""


class FixedPolicy:
    """A policy that never changes."""

    name = "fixed"

    def __init__(self, policy: SafetyPolicy) -> None:
        self._policy_version = PolicyVersion(self.name, 0, policy)

    async def read(self) -> PolicyVersion:
        """Return the policy."""
        return self._policy_version


class SafetyPolicies:
    """The policies of an open store, by name. Policies are never removed, so version numbers are not reused."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, name: str, version: int | None = None) -> PolicyVersion:
        """Return the newest version, or the one of that number.

        Raises Unknown, and InvalidValue for an invalid policy.
        """
        if version is None:
            document = await self._store.get(POLICY, checked_name("name", name))
        else:
            document = await self._store.get(PAST, _version_key(checked_name("name", name), version))
        if document is None:
            raise Unknown("safety policy", name if version is None else f"{name} of version {version}")
        return PolicyVersion(name, document.version if version is None else version, decode(document.data))

    async def put(self, name: str, policy: SafetyPolicy, *, expected: int) -> PolicyVersion:
        """Store a policy as the newest version; `expected` is the version before it, 0 for the first.

        Durable on return.

        Calls whose intention is recorded are decided by the version that is pinned there. Raises Conflict if another
        version is the newest: then nothing was written.
        """
        if not isinstance(policy, SafetyPolicy):
            raise InvalidValue("policy", policy, "a SafetyPolicy")
        if not isinstance(expected, int) or isinstance(expected, bool) or expected < 0:
            raise InvalidValue("expected", expected, "the version before this one, 0 for the first")
        data, version = encode(policy), expected + 1
        newest = DocumentWrite(POLICY, checked_name("name", name), data, expected)
        await self._store.put_together((), (newest, DocumentWrite(PAST, _version_key(name, version), data, 0)))
        return PolicyVersion(name, version, policy)

    def policy(self, name: str) -> StoredPolicy:
        """Return the policy of that name, for a gate: it is read again for each call."""
        return StoredPolicy(self, checked_name("name", name))


class StoredPolicy:
    """A policy of a store."""

    def __init__(self, policies: SafetyPolicies, name: str) -> None:
        self._policies, self.name = policies, name

    async def read(self) -> PolicyVersion:
        """Return the newest version of the policy."""
        return await self._policies.get(self.name)


def _version_key(name: str, version: int) -> str:
    return f"{name}/{version:012d}"
