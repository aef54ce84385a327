"""One level of nesting in the text of a shell command, as far as the text has been read."""

from __future__ import annotations

from dataclasses import dataclass, field

from ramet.tools.permissions.shell.words import Redirection, Word


@dataclass
class Frame:
    """One level of nesting: the command under way, and what ends the level."""

    closer: str  #: ")", "`", "}" or "" for the whole text
    start: int
    quoted: bool = False  #: inside double quotes
    is_array: bool = False  #: the values of `a=(…)`
    document: bool = False  #: the text of a here-document
    words: list[Word] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    in_word: bool = False
    expanded: bool = False
    began: int = 0  #: where the word under way begins
    literal: str = ""  #: the letters in front of the first expansion
    replaced: bool = False  #: by more than a pattern of file names
    operator: str = ""  #: a redirection whose target is the next word
    operator_end: int = 0

    def expand(self) -> None:
        """Note that the word under way is replaced from here on."""
        if not self.expanded:
            self.expanded, self.literal = True, "".join(self.letters)
