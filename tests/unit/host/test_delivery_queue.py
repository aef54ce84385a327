"""The waiting notifications of one target."""

from __future__ import annotations

import asyncio
from typing import Any

from ramet.concurrency.clock import FakeClock
from ramet.host.notifications.attempt import Attempt
from ramet.host.notifications.delivery_queue import DeliveryQueue, Entry
from ramet.host.notifications.notification import Notification
from ramet.host.notifications.targets import CallbackTarget
from tests.support.waiting import eventually


async def test_a_notification_behind_an_answered_question_waits_for_no_retry_of_the_question() -> None:
    """The question failed, and its retry is due later. Once it is answered, what is behind it is tried at once.

    A runtime that stops waits for each notification that was never tried, so it would wait for that retry in vain.
    """
    clock, delivered = FakeClock(), list[str]()

    async def deliver(notification: Notification) -> Attempt:
        if notification.approval:
            return Attempt("it answered 500")
        delivered.append(notification.id)
        return Attempt()

    async def record(entry: Entry) -> bool:
        return True

    def entry(id: str, **fields: Any) -> Entry:
        notification = Notification(id=id, kind="ended", time=clock.now(), text="", approval=fields.get("approval", ""))
        return Entry(notification=notification, order="run", record=record, **fields)

    queue = DeliveryQueue("hook", CallbackTarget(function=print), deliver, clock)
    serving = asyncio.create_task(queue.run())
    try:
        queue.push(entry("question", approval="q"))
        await eventually(lambda: queue.outcomes["failed"] == 1)
        queue.push(entry("end"))
        assert queue.is_settled
        queue.take_back(lambda each: each.approval == "q")
        await eventually(lambda: delivered == ["end"] and queue.is_settled)
    finally:
        serving.cancel()
        await asyncio.wait({serving})
