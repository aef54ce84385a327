"""The window of a forwarded reply: how many bytes the host may send that the program in the sandbox has not read."""

from __future__ import annotations

from typing import Final

#: Bytes of a reply on the way, at most, and of one piece of it.
WINDOW_BYTES: Final = 256 * 1024
CHUNK_BYTES: Final = 64 * 1024
#: Bytes after which the guest opens the window again.
UPDATE_BYTES: Final = 64 * 1024
