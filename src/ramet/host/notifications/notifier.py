"""The notifier of a runtime: it sends notifications about the runtime's trees to the configured targets.

The source is the journal. What was delivered of which tree is a document of the store, written after each delivery. So
after a kill a notification may be sent again, under the same id, and none is lost. No agent waits for a delivery.

A tree's document names the targets that were configured when the tree began (`notify`). Once the tree is over and
everything is delivered, the document says so (`notified`): the next start has nothing to look for in that tree.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from ramet.concurrency.clock import Clock
from ramet.core.errors import RametError
from ramet.core.events import Event
from ramet.host.journal.journal import TREES, Journal, change_tree
from ramet.host.journal.recorder import Recorder
from ramet.host.journal.subscription import Listener, listen
from ramet.host.notifications.attempt import CommandRunner, Deliver, FunctionCaller
from ramet.host.notifications.delivery_queue import DeliveryQueue
from ramet.host.notifications.delivery_record import RecordWriter, open_notifiers, seat_of
from ramet.host.notifications.lost_kernels import KernelWatch
from ramet.host.notifications.notification import NotificationWriter, tag_of
from ramet.host.notifications.recovery import TreeFacts, end_facts, newest_seq, unsent_trees
from ramet.host.notifications.targets import CallbackTarget, CommandTarget, NotificationTarget, WebhookTarget
from ramet.host.notifications.tree_deliveries import TAGS, JournalFeeder, TreeDeliveries, TreeListener
from ramet.store.contract import Store

_WORKERS: Final = 16  #: records that are taken or removed at a time
#: Time for a runtime that stops to deliver what has not failed yet; the rest stays in the journal.
SETTLE_S: Final = 5.0

_log = logging.getLogger("ramet.notifications")


class Notifier:
    """The service that sends the notifications of one runtime, from its first tree, or `start`, until `stop`."""

    def __init__(
        self,
        targets: Mapping[str, NotificationTarget],
        journal: Journal | None,
        clock: Clock,
        *,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._journal, self._clock = journal, clock
        self._id = f"notifier-{entropy(8).hex()}"
        self._writer = NotificationWriter()
        self.queues = {name: DeliveryQueue(name, each, _deliver(each, clock), clock) for name, each in targets.items()}
        self._feeders = {name: JournalFeeder(each) for name, each in self.queues.items()}
        self._longest = timedelta(seconds=max((each.max_age_s for each in targets.values()), default=0))
        self._trees: dict[str, TreeDeliveries] = {}
        self._last_seqs: dict[str, int] = {}  #: newest event of each tree that began here, by root
        self._attached: set[str] = set()  #: roots of trees whose events are reported here
        self._works: asyncio.Queue[Callable[[], Coroutine[Any, Any, None]]] = asyncio.Queue()
        self._is_searching = journal is not None  #: what earlier processes left is not known yet
        self._unfinished = 0  #: works that wait or are under way
        self._kernels_changed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._has_failed = False  #: the store failed

    @property
    def tree_facts(self) -> dict[str, Any]:
        """The facts for the document of a new tree."""
        return {"notify": sorted(self.queues)}

    @property
    def is_done(self) -> bool:
        """Return whether everything known is delivered and recorded; an event of this moment may not be known yet."""
        is_working = self._is_searching or self._unfinished or any(each.waiting for each in self.queues.values())
        return not is_working and all(each.is_done and each.closed_at is None for each in self._trees.values())

    def attach(self, recorder: Recorder) -> Listener:
        """Send notifications about a tree from now on."""
        listener = TreeListener(self.on_event, self.on_close)
        return listen(recorder, listener.on_event, listener.on_close)

    def start(self) -> None:
        """Begin, and send what earlier processes left; idempotent. An event loop must be running."""
        if (self._serving is None or self._serving.done()) and not self._has_failed:
            self._serving = asyncio.create_task(
                self._serve(), name="ramet notifications", context=contextvars.Context()
            )

    async def stop(self) -> None:
        """Deliver what has not failed yet, for a few seconds at most, and end; idempotent.

        Whatever is not delivered stays in the journal, for the next process.
        """
        serving, self._serving = self._serving, None
        if serving is None:
            return
        if self._trees and not serving.done():
            settling = asyncio.create_task(self._settle(), name="ramet notifications")
            await asyncio.wait({settling, serving}, return_when=asyncio.FIRST_COMPLETED, timeout=2 * SETTLE_S)
            settling.cancel()
            await asyncio.wait({settling})
        serving.cancel()
        await asyncio.wait({serving})

    async def _settle(self) -> None:
        end = self._clock.monotonic() + SETTLE_S
        await self._works.join()
        for queue in self.queues.values():
            await queue.settle(max(0.0, end - self._clock.monotonic()))
        await self._works.join()

    # ---- events

    def on_event(self, event: Event, is_new: bool) -> None:
        """Take an event of a tree of this runtime. `is_new` says that the tree's first event was reported here."""
        root = event.root
        self._attached.add(root)
        if is_new:
            self._last_seqs[root] = event.seq
        if tag_of(event) not in TAGS:
            return
        self.start()
        tree = self._trees.get(root)
        if tree is None or tree.is_lost:  # Another notifier had it, and this kernel has the tree by now.
            is_new = is_new and tree is None
            tree = self._trees[root] = self._new_tree(root)
            if self._journal is not None:
                take = partial(
                    self._take, self._journal.store, tree, by_force=True, is_new=is_new, newest=event.seq - 1
                )
                self._add_work(take)
        tree.report(event)

    def on_close(self, root: str) -> None:
        """Forget a tree that has closed, once its notifications are delivered; one of a journal ends differently."""
        if self._journal is None:
            self._attached.discard(root)
            self._last_seqs.pop(root, None)
            tree = self._trees.get(root)
            if tree is not None and tree.is_done:
                del self._trees[root]
            elif tree is not None:
                tree.close(self._clock.now(), was_reported=True)

    def _new_tree(self, root: str) -> TreeDeliveries:
        record = None if self._journal is None else RecordWriter(self._journal.store, root, lambda: self._id)
        return TreeDeliveries(root, list(self.queues.values()), self._writer, record, self._on_done, self._on_behind)

    def _on_behind(self, tree: TreeDeliveries, queue: DeliveryQueue) -> None:
        self._feeders[queue.name].add(tree)

    def _on_done(self, tree: TreeDeliveries) -> None:
        if self._trees.get(tree.root) is tree:
            del self._trees[tree.root]
            if self._journal is not None:
                self._add_work(partial(self._finish, self._journal.store, tree))

    def facts_at_end(self, root: str, now: datetime) -> Mapping[str, Any]:
        """Return the facts for the document of a tree that ends now."""
        last_seq, tree = self._last_seqs.pop(root, None), self._trees.get(root)
        if tree is not None:
            tree.last_seq = max(tree.last_seq, last_seq or 0)
            if tree.is_lost or not tree.is_done:
                return {}
            tree.is_noted, last_seq = True, tree.last_seq
        return {} if last_seq is None else end_facts(last_seq, now)

    def _on_tree_over(self, root: str, ended: datetime) -> None:
        """Forget a tree that is over, once everything is delivered."""
        tree, was_reported = self._trees.get(root), root in self._attached
        self._attached.discard(root)
        if tree is not None:
            tree.close(ended, was_reported=was_reported)
            if tree.is_lost:
                del self._trees[root]

    # ---- the service

    async def _serve(self) -> None:
        try:
            with ExitStack() as stack:
                async with asyncio.TaskGroup() as group:
                    await self._begin(stack, group)
                    for queue in self.queues.values():
                        group.create_task(queue.run(), name=f"ramet notifications {queue.name}")
                    for _ in range(_WORKERS):
                        group.create_task(self._work(), name="ramet notifications")
        except* RametError as problem:
            self._has_failed = True
            reasons = sorted({str(each) for each in _leaves(problem)})
            _log.error("no more notifications are sent by this process: %s", "; ".join(reasons))
        except* Exception as problem:
            self._has_failed = True
            _log.exception("no more notifications are sent by this process", exc_info=problem)

    async def _begin(self, stack: ExitStack, group: asyncio.TaskGroup) -> None:
        if self._journal is None:
            return
        self._journal.over_listeners.append(self._on_tree_over)
        stack.callback(self._journal.over_listeners.remove, self._on_tree_over)
        await self._journal.open()
        store = self._journal.store
        if "@" not in self._id:
            self._id = f"{self._id}@{await seat_of(store)}"
        open_notifiers.add(self._id)
        stack.callback(open_notifiers.discard, self._id)
        stack.callback(store.on_kernels(self._kernels_changed.set))
        for feeder in self._feeders.values():
            group.create_task(feeder.run(store), name="ramet notifications")
        group.create_task(self._watch_kernels(store), name="ramet notifications")

    async def _work(self) -> None:
        """Do works on records, one after the other."""
        while True:
            work = await self._works.get()
            try:
                await work()
            finally:
                self._unfinished -= 1
                self._works.task_done()

    def _add_work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._unfinished += 1
        self._works.put_nowait(work)

    async def _watch_kernels(self, store: Store) -> None:
        """Send what was left by earlier processes and by lost kernels."""
        watch = KernelWatch(store, self._id, self.queues, self._writer, self._clock)
        while True:
            self._kernels_changed.clear()
            await watch.check()
            now = self._clock.now()
            for root in await unsent_trees(store, self._trees, self.queues, self._longest, now):
                await self._take_left(store, root)
            self._is_searching = False
            await self._kernels_changed.wait()

    async def _take_left(self, store: Store, root: str) -> None:
        """Take a tree whose notifications nobody sends."""
        if root not in self._trees:  # Otherwise a run of the tree was resumed here meanwhile.
            tree = self._trees[root] = self._new_tree(root)
            await self._take(store, tree, by_force=False, is_new=False)

    async def _take(
        self, store: Store, tree: TreeDeliveries, *, by_force: bool, is_new: bool, newest: int | None = None
    ) -> None:
        """Take the record of a tree; leave the tree to another living notifier that has it.

        `newest` is the number of the newest event before those that are reported here, if it is known.
        """
        document = None if is_new else await store.get(TREES, tree.root)
        facts = TreeFacts(notify=tuple(self.queues)) if document is None else document.decode(TreeFacts)
        if newest is None:
            newest = 0 if self.queues.keys() <= set(facts.notify) else await newest_seq(store, tree.root)
        starts = facts.starts(self.queues, newest)
        if not await tree.take(by_force=by_force, is_new=is_new, starts=starts):
            if self._trees.get(tree.root) is tree:
                del self._trees[tree.root]
        elif facts.over and facts.ended is not None:  # Otherwise its end is reported here.
            tree.close(facts.ended, was_reported=True)

    async def _finish(self, store: Store, tree: TreeDeliveries) -> None:
        """Note that everything of a tree was delivered up to its end, and remove its record."""
        if not tree.is_noted:
            await change_tree(store, tree.root, **end_facts(tree.last_seq, tree.closed_at))
        if tree.record is not None:
            await tree.record.remove()


def _deliver(target: NotificationTarget, clock: Clock) -> Deliver:
    """Return the function that makes one attempt."""
    match target:
        case WebhookTarget():
            from ramet.host.notifications.webhook import WebhookClient

            return WebhookClient(target, clock).deliver
        case CommandTarget():
            return CommandRunner(target, clock).deliver
        case CallbackTarget():
            return FunctionCaller(target, clock).deliver
        case _:
            raise AssertionError(f"not a target: {type(target).__name__}")


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the single errors of a group of groups."""
    return [
        leaf
        for each in group.exceptions
        for leaf in (_leaves(each) if isinstance(each, BaseExceptionGroup) else [each])
    ]
