"""Helpers for tests of loops in other processes: a session whose conversations each have a guest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from ramet.core.errors import ProtocolError, RametError
from ramet.spawn.run import Run
from ramet.spawn.sandbox.channel import GuestChannel
from ramet.spawn.sandbox.conversation import SandboxedConversation
from ramet.spawn.sandbox.requests import GuestRequests
from ramet.wire.guest_protocol.guest_to_host import Done
from ramet.wire.guest_protocol.host_to_guest import Stop
from tests.support.guests import Guest, Guests

GRACE_S = 5.0


class GuestLoops:
    """Runs the conversations of the host's turns in guests, and keeps their last messages."""

    def __init__(self, source: Guests) -> None:
        self._source = source
        self.guests: list[Guest] = []
        self.conversations: list[SandboxedConversation] = []
        self.last_words: list[Done | None] = []

    async def converse(self, run: Run, messages: Sequence[BaseMessage]) -> Any:
        """Run one turn as `run_in_sandbox` does, without the sandbox."""
        conversation = SandboxedConversation(run, messages)
        requests = GuestRequests(run, run.context.next_step(), conversation)
        channel = requests.channel = GuestChannel(requests)
        guest = self._source.launch()
        self.guests.append(guest)
        self.conversations.append(conversation)
        await channel.open(guest.channel)
        run.context.slot.begin_calls()
        try:
            first, body = await conversation.start()
            await channel.send(first, body)
            channel.run_concurrently(conversation.forward_mail(channel.send))
            finish = await self._over(channel)
            self.last_words.append(finish.done if finish is not None else None)
            if finish is None:
                raise RametError("it ended without a word")
            return conversation.finish(finish.done, finish.body)
        finally:
            guest.kill()
            await channel.close()
            run.context.slot.end_call()

    async def _over(self, channel: GuestChannel) -> Any:
        try:
            return await channel.wait_closed()
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, ProtocolError):
                await channel.send(Stop(reason="its turn was stopped"))
                await asyncio.wait_for(channel.wait_closed(), GRACE_S)
            raise
