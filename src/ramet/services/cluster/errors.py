"""Refusals of a request that this kernel cannot answer: for the client, or for a forwarding kernel."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from ramet.services.http.responses import Refusal

#: Tells a forwarding kernel that this kernel is not, or no longer, the owner: it must look up the owner again.
MISDIRECTED: Final = HTTPStatus.MISDIRECTED_REQUEST
#: The header that tells a forwarding kernel, not its client, that its pass was refused.
PASS_REFUSED: Final = "ramet-pass"


def misdirected_request() -> Refusal:
    """Return the refusal for a forwarding kernel: it must ask another kernel."""
    return Refusal(MISDIRECTED, "this kernel does not own it any more")


def outcome_unknown() -> Refusal:
    """Return the refusal for a request that another kernel may have executed, with unknown outcome."""
    return Refusal(
        HTTPStatus.BAD_GATEWAY, "the kernel that owned it was lost meanwhile: this may have been done, or not"
    )


def unavailable() -> Refusal:
    """Return the refusal for an object that exists, while no kernel can answer for it."""
    detail = "the kernel that owns it is unavailable, and no other kernel has taken over yet; try again soon"
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"retry-after": "1"})
