"""The events of a tree that a test looks at: of a session, of a handle, or of any iterable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, overload

from ramet.core.errors import InvalidValue, Unknown
from ramet.core.events import Event
from ramet.host.runtime import AgentRuntime
from ramet.host.runtime_base import active_runtimes
from ramet.host.sandbox.handle import AgentHandle
from ramet.host.session import Session
from ramet.host.sync_session import SyncSession
from ramet.host.trees.factory import OpenTree
from ramet.spawn.handle import Handle

E = TypeVar("E", bound=Event)
#: What has the events of a whole tree.
Tree = Session | SyncSession | Handle | AgentHandle
ACCEPTED = "a session, a handle, or an iterable of events"


@overload
def events_of(
    source: Tree | Iterable[object], /, *, path: str | None = None, agent: str | None = None
) -> list[Event]: ...


@overload
def events_of(
    source: Tree | Iterable[object], kind: type[E], /, *, path: str | None = None, agent: str | None = None
) -> list[E]: ...


def events_of(
    source: Tree | Iterable[object], kind: type[Event] = Event, /, *, path: str | None = None, agent: str | None = None
) -> Sequence[Event]:
    """Return the recorded events of one kind, in order: of a whole tree, or of the run at `path`, or of an `agent`.

    A session, or the handle of any run, stands for its whole tree. An iterable may hold other items, such as the chunks
    that `submit_message` yields. Only what is recorded is here: no text deltas. Raises InvalidValue for a source
    without events, and Unknown for a handle whose runtime has stopped.
    """
    return [
        event
        for event in _all_events(source)
        if isinstance(event, kind) and (path is None or event.path == path) and (agent is None or event.agent == agent)
    ]


def open_trees(source: Tree | AgentRuntime) -> list[OpenTree]:
    """Return the trees that a source stands for; those of a runtime are its open trees.

    Raises InvalidValue for any other object, and Unknown for a handle whose runtime has stopped.
    """
    if isinstance(source, SyncSession):
        source = source.session
    if isinstance(source, Session):
        return [source._open_tree]
    if isinstance(source, AgentRuntime):
        return list(source.trees.values())
    if isinstance(source, Handle | AgentHandle):
        for runtime in active_runtimes:
            if trees := runtime._trees.of(source.id):
                return trees
        raise Unknown("run of a runtime that has not stopped", source.id)
    raise InvalidValue("source", source, "a session, a handle, or a runtime")


def _all_events(source: object) -> Iterator[Event]:
    if isinstance(source, Session | SyncSession | Handle | AgentHandle):
        for tree in open_trees(source):
            yield from tree.recorder.recent_events
    elif isinstance(source, Iterable) and not isinstance(source, str | bytes):
        yield from (item for item in source if isinstance(item, Event))
    else:
        raise InvalidValue("source", source, ACCEPTED)
