"""`Attachment`: a file that comes with a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ramet.core.arguments import check_instance
from ramet.core.errors import InvalidValue
from ramet.core.media.media_types import MAX_NAME, MediaType, media_type_of

#: Files of one message, and their bytes together.
MAX_FILES: Final = 20
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image, a PDF or a text that comes with a prompt. Its content says which: names and claims do not count.

    Raises InvalidValue for content of another kind, or of more than 3,750,000 bytes.
    """

    data: bytes = field(repr=False)
    name: str = ""  #: for people and models; no path
    media_type: MediaType = field(init=False)  #: read from `data`, such as "image/png"

    def __post_init__(self) -> None:
        check_instance("data", self.data, bytes, "bytes")
        if not isinstance(self.name, str) or len(self.name) > MAX_NAME or not self.name.isprintable():
            raise InvalidValue("name", self.name, f"at most {MAX_NAME} printable characters")
        object.__setattr__(self, "media_type", media_type_of(self.data))


def check_attachments(attachments: object) -> Sequence[Attachment]:
    """Return the attachments of one prompt. Raises InvalidValue if they are none, or too many."""
    if not isinstance(attachments, Sequence) or not all(isinstance(each, Attachment) for each in attachments):
        raise InvalidValue("attachments", attachments, "a list of ramet.Attachment")
    size = sum(len(each.data) for each in attachments)
    if len(attachments) > MAX_FILES or size > MAX_MESSAGE_BYTES:
        accepted = f"at most {MAX_FILES} files of {MAX_MESSAGE_BYTES} bytes together"
        raise InvalidValue("attachments", f"{len(attachments)} files of {size} bytes", accepted)
    return attachments
