"""Mail of a run whose loop is in its sandbox: sent there as it arrives, and unread until it is accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ramet.concurrency.mailbox import Mail
from ramet.core.errors import RametError
from ramet.models.json_values import clean_text
from ramet.tools.context import ToolUseContext
from ramet.wire.guest_protocol.host_to_guest import IncomingMail, Stop


async def forward_mail(
    context: ToolUseContext,
    send: Callable[..., Awaitable[None]],
    text_of: Callable[[Mail], str],
    *,
    outlives_kernel: bool = False,
) -> None:
    """Send new mail and a stop to the guest.

    Runs concurrently with the guest, and is cancelled when the guest has ended. A guest that outlives its kernel gets
    only mail that is on record: the next kernel would not know other mail, and could not go on with the guest.
    """
    wakeup, sent_ids = asyncio.Event(), set[str]()
    context.mailbox.on_push = lambda _: wakeup.set()
    abort_wait = asyncio.ensure_future(context.abort.wait_aborted())
    abort_wait.add_done_callback(lambda _: wakeup.set())
    try:
        while not abort_wait.done():
            wakeup.clear()
            for mail in [each for each in context.mailbox.unread if each.id not in sent_ids and each.kind != "note"]:
                sent_ids.add(mail.id)
                if outlives_kernel:
                    with suppress(RametError):  # The store failed: the runtime ends this run, and reports why.
                        await context.wait_persisted()
                text = clean_text(text_of(mail)).encode()
                await send(IncomingMail(mail_id=mail.id, sender=mail.sender, kind=mail.kind), text)
            await wakeup.wait()
        await send(Stop(reason=abort_wait.result()))
        await asyncio.get_running_loop().create_future()  # Its work in progress is still reported and charged.
    finally:
        context.mailbox.on_push = None
        abort_wait.cancel()
