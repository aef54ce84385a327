"""What is said where no answer can be had: to whoever asked, or to the kernel that passed a request on."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from ramet.services.http.responses import Refusal

#: Says that a kernel has not, or has no more, what it was asked for: the one that forwards looks again who has.
NOT_MINE: Final = HTTPStatus.MISDIRECTED_REQUEST
#: Says so where it is not for its client: that a pass was refused.
PASS_REFUSED: Final = "ramet-pass"


def misdirected() -> Refusal:
    """For a kernel: it is to ask another one."""
    return Refusal(NOT_MINE, "this kernel has it no more")


def outcome_unknown() -> Refusal:
    """It was begun where it was to be done, perhaps; nobody knows."""
    return Refusal(HTTPStatus.BAD_GATEWAY, "the kernel that has it was lost meanwhile: this may have been done, or not")


def unavailable() -> Refusal:
    """What is asked for is there, and nobody can answer for it just now."""
    detail = "the kernel that has it is away, and no other has taken over from it yet; try again soon"
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"retry-after": "1"})
