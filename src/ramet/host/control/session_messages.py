"""The way of a message from one session to another: through the control socket of the kernel that has the other."""

from __future__ import annotations

import pathlib

from ramet.core.errors import MailRefused
from ramet.core.policy.session_access import SessionMessage
from ramet.host.control.socket import KernelEnded, NoKernel, Refused, send_request

PATIENCE_S = 30.0
_MAX_REASON = 500  #: characters


async def pass_message(folder: pathlib.Path, to: str, message: SessionMessage) -> str:
    """Pass a message to the kernel of a folder, and return what happened to it. Raises MailRefused."""
    try:
        answer = await send_request(folder, message, patience_s=PATIENCE_S)
    except KernelEnded:
        reason = "its process ended before it had answered; send the same text again: it is delivered once"
        raise MailRefused(to, reason) from None
    except NoKernel:
        raise MailRefused(to, "no session is open there, or it does not answer") from None
    except Refused as refusal:
        raise MailRefused(to, str(refusal)[:_MAX_REASON]) from None
    if "refused" in answer:
        raise MailRefused(to, str(answer["refused"])[:_MAX_REASON])
    return str(answer["outcome"])[:_MAX_REASON]
