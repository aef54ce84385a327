"""A level of nesting in the text of a shell command that is being scanned."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramet.tools.permissions.shell.words import Redirection, Word


@dataclass
class Frame:
    """A level of nesting: its current command, and the character that ends the level."""

    closer: str  #: ")", "`", "}" or "" for the whole text
    start: int
    is_quoted: bool = False  #: inside double quotes
    is_array: bool = False  #: the values of `a=(…)`
    document: bool = False  #: the text of a here-document
    words: list[Word] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    in_word: bool = False
    is_expanded: bool = False
    word_start: int = 0  #: offset of the current word
    literal: str = ""  #: the letters before the first expansion
    is_replaced: bool = False  #: by more than a pattern of file names
    operator: str = ""  #: a redirection whose target is the next word
    operator_end: int = 0

    def expand(self) -> None:
        """Note that the current word is expanded from here on."""
        if not self.is_expanded:
            self.is_expanded, self.literal = True, "".join(self.letters)
