"""The safety gates of a server's kernel: the policies that they read, and the events at them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from ramet.core import events
from ramet.core.errors import InvalidValue
from ramet.host.safety.inspection import KINDS, GateEvent, GateEventFilter, follow, passages
from ramet.host.safety.policies import POLICY, PolicyVersion, SafetyPolicies
from ramet.services.operator.contract import (
    GatePolicy,
    GatePolicyPage,
    Paging,
    PassageFilter,
    PassagePage,
    PassageRow,
    PolicyName,
    PutGatePolicy,
)
from ramet.services.operator.runs import RecordedTrees, checked_limit
from ramet.services.turns.tree_events import TreeEvent


class GateViews:
    """Policies by name, changed by compare-and-swap; gate events by cursor. Unknown names raise Unknown."""

    def __init__(self, journal: RecordedTrees) -> None:
        """Keep `journal` open during the use of the views."""
        self._journal, self._policies = journal, SafetyPolicies(journal.store)

    async def page(self, request: Paging) -> GatePolicyPage:
        """Return a page of the policies, by their names and newest versions."""
        limit = checked_limit(request.limit)
        documents = [each for each in await self._journal.store.list(POLICY) if each.key > request.after]
        names = [PolicyName(name=each.key, version=each.version) for each in documents[:limit]]
        return GatePolicyPage(policies=names, more=names[-1].name if len(documents) > limit else "")

    async def get(self, name: str, version: int = 0) -> GatePolicy:
        """Return the newest version of a policy, or the version of that number."""
        return _policy(await self._policies.get(name, version or None))

    async def put(self, name: str, request: PutGatePolicy) -> GatePolicy:
        """Write the newest version of a policy, after the version `expected`.

        Raises Conflict, and nothing was written.
        """
        return _policy(await self._policies.put(name, request.policy, expected=request.expected))

    async def list_events(self, request: PassageFilter) -> PassagePage:
        """Return a page of the events at the gates after a cursor."""
        limit, query_filter = checked_limit(request.limit), _filter(request)
        page = await passages(self._journal.store, query_filter, after=request.after, limit=limit)
        return PassagePage(entries=[_row(each) for each in page.entries], cursor=page.cursor, more=page.more)

    def follow_events(self, request: PassageFilter) -> AsyncGenerator[TreeEvent]:
        """Yield the events at the gates after a cursor and new events, as JSON, without an end.

        Raises InvalidValue at once.
        """
        return self._follow(_filter(request), request.after)

    async def _follow(self, event_filter: GateEventFilter, after: int) -> AsyncGenerator[TreeEvent]:
        async with aclosing(follow(self._journal.store, event_filter, after=after)) as entries:
            async for each in entries:
                yield TreeEvent(each.cursor, msgspec.json.encode(_row(each)))


def _filter(request: PassageFilter) -> GateEventFilter:
    for field in ("tree", "run"):
        if "\0" in (value := getattr(request, field)):
            raise InvalidValue(field, value, "the id of a run")
    return GateEventFilter(
        tree=request.tree or None,
        run=request.run or None,
        path=request.path or None,
        tool=request.tool or None,
        kinds=tuple(request.kinds) or KINDS,
        committed=request.committed,
    )


def _policy(policy_version: PolicyVersion) -> GatePolicy:
    return GatePolicy(name=policy_version.name, version=policy_version.version, policy=policy_version.policy)


def _row(passage: GateEvent) -> PassageRow:
    event = msgspec.json.decode(events.encode(passage.event))
    return PassageRow(cursor=passage.cursor, kind=passage.kind, event=event)
