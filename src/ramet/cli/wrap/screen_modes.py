"""The modes of a terminal that a program has set: to reset them when the program can no longer do so, or to set them
again.
"""

from __future__ import annotations

import re
from typing import Final

#: The private modes (DECSET) that disturb a shell, and the letter that resets each. All others stay as they are.
_RESETS: Final = dict.fromkeys(
    (1, 9, 47, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1049, 2004, 2026), "l"
) | {7: "h", 25: "h"}
_MODE = re.compile(rb"\x1b\[(?:\?([0-9;]{1,64})([hl])|([<>])([0-9]{0,4})u|>4(?:;([0-9]))?m)")
_MAX_SEQUENCE = 72  #: bytes of the longest sequence that is recognized
_MAX_DEPTH = 32  #: of the stack of keyboard modes
_ESCAPES = (b"\x1b", b"\x9b", b"\x05")  #: Without one of these bytes a program cannot ask the terminal anything.
#: no colour, and the default character set
_PLAIN = b"\x1b[0m\x1b(B\x0f"


class ScreenModes:
    """The modes that are set, by the output of a program so far."""

    def __init__(self) -> None:
        self.has_escapes = False  #: the program may have set a mode, or asked the terminal to reply
        self._changed_modes: set[int] = set()
        self._keyboard_flags: list[int] = []  #: the stack of keyboard modes
        self._modified_keys = 0
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Take note of a piece of output. A sequence may be cut anywhere between two pieces."""
        if not self.has_escapes and not any(each in data for each in _ESCAPES):
            return
        self.has_escapes = True
        text = self._tail + data
        end = 0
        for match in _MODE.finditer(text):
            end = match.end()
            modes, letter, keyboard, count, modified = match.groups()
            if modes is not None:
                self._set_modes(modes, letter.decode())
            elif keyboard is not None:
                self._set_keyboard(keyboard, int(count) if count else None)
            else:
                self._modified_keys = int(modified or b"0")
        begin = text.rfind(b"\x1b", end)
        self._tail = text[begin:] if 0 <= len(text) - begin <= _MAX_SEQUENCE and begin >= 0 else b""

    def reset(self) -> bytes:
        """Return the output that resets all modes; empty if the program wrote plain text only."""
        if not self.has_escapes:
            return b""
        keyboard = f"\x1b[<{len(self._keyboard_flags)}u" if self._keyboard_flags else ""
        keyboard += "\x1b[>4m" if self._modified_keys else ""
        modes = "".join(f"\x1b[?{each}{_RESETS[each]}" for each in sorted(self._changed_modes))
        return (keyboard + modes).encode() + _PLAIN

    def set_again(self) -> bytes:
        """Return the output that sets the modes after a reset; empty if there are none."""
        modes = "".join(f"\x1b[?{each}{'h' if _RESETS[each] == 'l' else 'l'}" for each in sorted(self._changed_modes))
        keyboard = "".join(f"\x1b[>{flags}u" for flags in self._keyboard_flags)
        keyboard += f"\x1b[>4;{self._modified_keys}m" if self._modified_keys else ""
        return (modes + keyboard).encode()

    def _set_modes(self, modes: bytes, letter: str) -> None:
        for each in modes.split(b";"):
            mode = int(each or b"0")
            if (reset := _RESETS.get(mode)) is not None:
                (self._changed_modes.discard if letter == reset else self._changed_modes.add)(mode)

    def _set_keyboard(self, direction: bytes, number: int | None) -> None:
        """Push flags, or pop as many as stated."""
        if direction == b">":
            self._keyboard_flags = [*self._keyboard_flags, number or 0][-_MAX_DEPTH:]
        elif count := 1 if number is None else number:
            del self._keyboard_flags[-count:]
