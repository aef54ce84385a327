"""Separate the words of known programs into files and other words, and determine how the files are used.

A word is excluded only if its program uses it in another way: a message, a pattern, an excluded name, a package. With
an unknown option all words of the program count as files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ramet.tools.permissions.files.grammars import (
    ANY,
    CHANGERS,
    FLAT,
    NEITHER,
    PACKAGE,
    PROGRAMS,
    READERS,
    SUBCOMMANDS,
    Grammar,
)
from ramet.tools.permissions.shell.expansions import is_pattern, may_be, may_be_option
from ramet.tools.permissions.shell.programs import FIND_ACTIONS, WRAPPERS
from ramet.tools.permissions.shell.words import ASSIGNMENT, Word

#: Letters of tar that take no word, in a bundle without a dash.
_TAR_FLAGS = frozenset("AcdrtuxUOkpzjJZSvwmhPaloi")
#: Programs that read none of the files whose names they get from other programs.
_FILTERS = (READERS - {".", "file", "source"}) | CHANGERS | NEITHER | frozenset("done esac fi sort uniq".split())
_NAMES_FROM = re.compile(r"-.*(stdin|batch|files0|-from)", re.DOTALL)
_MAX_SUBCOMMANDS = 3
_SYSTEM = ("/bin/", "/usr/")
#: Words before a program that only select how it is found.
_RUNNERS = {("python", "-m"), ("python3", "-m"), ("uv", "run"), ("poetry", "run")}
_RUN_PROGRAMS = frozenset("bandit black flake8 isort mypy pip pip3 py.test pylint pytest ruff".split())
_GIT_FLAGS = frozenset({"--no-pager", "-P", "-p", "--paginate"})
_FIND_TESTS = frozenset(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -lname -ilname -type -size -perm -maxdepth"
    " -mindepth -mtime -mmin -printf -user -group".split()
)
_FIND_FILES = ("-fprint", "-fls", "-files0")
_MAX_PREFIX = 8  #: words before a program that `find` starts


class WordUses(NamedTuple):
    """The words of a program, by their use. `files` are names; `texts` are other words, unless `is_doubtful`."""

    files: tuple[Word, ...]
    texts: tuple[Word, ...] = ()
    reads: bool = True
    changes: bool = True
    is_doubtful: bool = False  #: a word may become an option that reads or changes more
    descends: bool = True  #: to the files inside of a named folder
    is_known: bool = True

    @property
    def lists(self) -> bool:
        """Return whether the program opens none of the files: it may only print their names."""
        return not self.reads and not self.changes


def program_at(words: Sequence[Word]) -> int | None:
    """Return the index of the program that words start, after the programs that start it; None if unknown."""
    skipped, is_wrapped = 0, False
    for at, word in enumerate(words):
        name = word.text.rpartition("/")[2]
        if word.is_expanded or (is_wrapped and name.startswith("-")):
            return None
        if skipped:
            skipped -= 1
        elif name in WRAPPERS:
            skipped, is_wrapped = WRAPPERS[name].positionals, True
        elif not (is_wrapped and ASSIGNMENT.match(word.text)):
            return at
    return None


def uses_of(words: Sequence[Word]) -> WordUses:
    """Return how the program that words start uses files; for an unknown program, all words are files."""
    at = program_at(words)
    if at is None:
        return WordUses(tuple(words[1:]), is_known=False)
    name = words[at].text.rpartition("/")[2]
    if name in NEITHER:
        return WordUses((), reads=False, changes=False)
    uses = _known_uses(words[at:])
    if uses is None:
        is_known = name in READERS or name in CHANGERS
        uses = WordUses(tuple(words[at + 1 :]), (), name not in CHANGERS, name not in READERS, is_known=is_known)
    is_doubtful = uses.is_doubtful or _is_own(words[at])
    files = (*words[1 : at + 1], *uses.files) if at else uses.files
    return uses._replace(files=files, is_doubtful=is_doubtful, descends=name not in FLAT)


def _is_own(program: Word) -> bool:
    """Return whether a program may differ from the one that its name suggests."""
    return "/" in program.text and not program.text.startswith(_SYSTEM)


def takes_names(words: Sequence[Word]) -> bool:
    """Return whether a program may open files whose names another program printed."""
    at = program_at(words)
    if not words:
        return False
    if at is None or any(each.text.rpartition("/")[2] == "xargs" for each in words[:at]):
        return True
    name = words[at].text.rpartition("/")[2]
    known = _known_uses(words[at:])
    if name in NEITHER or (known is not None and known.lists):
        return any(_NAMES_FROM.match(each.text) for each in words)
    if name not in _FILTERS and known is None:
        return True
    return any((each.is_expanded and not is_pattern(each)) or _NAMES_FROM.match(each.text) for each in words[at + 1 :])


def _known_uses(words: Sequence[Word]) -> WordUses | None:
    """Return the uses of a known program; None if its words are not understood."""
    if tuple(each.text for each in words[:2]) in _RUNNERS and not any(each.is_expanded for each in words[:2]):
        words = words[2:] if [each.text in _RUN_PROGRAMS for each in words[2:3]] == [True] else ()
    if not words or words[0].is_expanded:
        return None
    name = words[0].text.rpartition("/")[2]
    if name == "find":
        return _find(words[1:])
    if name in PROGRAMS:
        return _parsed_uses(PROGRAMS[name], words[1:])
    at = 1
    while name == "git" and at < len(words) and (words[at].text in _GIT_FLAGS or words[at].text == "-C"):
        at += 2 if words[at].text == "-C" else 1
    for length in range(1, _MAX_SUBCOMMANDS):
        subcommand = words[at : at + length]
        grammar = SUBCOMMANDS.get(" ".join((name, *(each.text for each in subcommand))))
        if grammar is not None and not any(each.is_expanded for each in words[1 : at + length]):
            uses = _parsed_uses(grammar, words[at + length :])
            return uses and uses._replace(files=(*words[1:at], *uses.files))
    return None


class _Reading:
    """A parser of the words of one program."""

    def __init__(self, grammar: Grammar, words: Sequence[Word]) -> None:
        self.grammar, self.words, self.at = grammar, words, 0
        self.files: list[Word] = []
        self.texts: list[Word] = []
        self.operands: list[Word] = []
        self.is_doubtful = False
        self.is_after_unknown = False  #: an option that may take the next word
        self.has_pattern = False
        self.has_needed = not grammar.required_option

    def read(self) -> bool:
        """Return whether the words are understood."""
        if self.grammar.bundle and self.words and self.words[0].text[:1] != "-":
            self.at = 1 + sum(letter not in _TAR_FLAGS for letter in self.words[0].text)
            self.files += self.words[: self.at]
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            self.is_doubtful = self.is_doubtful or (may_be_option(word) and word.text[:1] != "-")
            if word.text == "--":
                self.operands += self.words[self.at :]
                break
            if word.text[:1] in ("-", "+") and self.grammar.loose and self._is_suspect(word):
                return False
            if word.text[:1] != "-" or word.text == "-":
                (self.files if self.is_after_unknown else self.operands).append(word)
                self.is_after_unknown = False
            elif not (self._long(word) if word.text.startswith("--") else self._letters(word)):
                return False
        self._sort_operands()
        return self.has_needed

    def _is_suspect(self, word: Word) -> bool:
        is_known = set(word.text[1:]) <= set(self.grammar.flags) and word.text[:1] == "-"
        return not is_known and self.grammar.suspects.match(word.text) is not None

    def _long(self, word: Word) -> bool:
        name, is_set, value = word.text.partition("=")
        self.has_pattern = self.has_pattern or name in self.grammar.patterns.split()
        self.has_needed = self.has_needed or word.text == self.grammar.required_option
        if name in self.grammar.long_texts.split():
            return self._value(word, value if is_set else None, is_file=False)
        if name in self.grammar.long_values.split():
            return self._value(word, value if is_set else None, is_file=True)
        if name not in self.grammar.long_flags.split():
            self.files.append(word)
            self.is_after_unknown = not is_set
            return self.grammar.loose
        self.is_after_unknown = False
        return True

    def _letters(self, word: Word) -> bool:
        for at, letter in enumerate(word.text[1:], start=1):
            self.has_pattern = self.has_pattern or f"-{letter}" in self.grammar.patterns.split()
            if letter in self.grammar.attached_values:
                break
            if letter in self.grammar.texts or letter in self.grammar.values:
                return self._value(word, word.text[at + 1 :] or None, is_file=letter in self.grammar.values)
            if letter not in self.grammar.flags:
                self.files.append(word)
                self.is_after_unknown = True
                return self.grammar.loose
        self.is_after_unknown = False
        return True

    def _value(self, word: Word, attached: str | None, *, is_file: bool) -> bool:
        """Take the value of an option: the attached text, or the next word."""
        is_option_sure, self.is_after_unknown = not self.is_after_unknown, False
        if attached is not None:
            value = word._replace(text=attached)
        elif self.at < len(self.words):
            value = self.words[self.at]
            self.at += 1
        else:
            return True
        is_one_word = _is_one_word(value) or (attached is not None and is_pattern(word))
        self.is_doubtful = self.is_doubtful or not is_one_word
        is_text = not is_file and (is_option_sure or attached is not None)
        (self.texts if is_text else self.files).append(value)
        return True

    def _sort_operands(self) -> None:
        """Separate the operands that are files from a pattern, a script and names of packages."""
        grammar, operands = self.grammar, self.operands
        if grammar.packages:
            self.texts += [each for each in operands if not each.is_expanded and PACKAGE.match(each.text)]
            self.files += [each for each in operands if each.is_expanded or not PACKAGE.match(each.text)]
        elif grammar.first is not None and not self.has_pattern and operands:
            self.texts.append(operands[0])
            self.files += operands[1:]
        else:
            self.files += operands


def _parsed_uses(grammar: Grammar, words: Sequence[Word]) -> WordUses | None:
    reading = _Reading(grammar, words)
    if not reading.read() or not _fits_first(grammar, reading.operands[:1]):
        return None
    is_doubtful = reading.is_doubtful and not grammar.is_sure
    return WordUses(tuple(reading.files), tuple(reading.texts), grammar.reads, grammar.changes, is_doubtful)


def _fits_first(grammar: Grammar, operands: Sequence[Word]) -> bool:
    """Return whether the first operand fits the grammar; a composed script does not."""
    if grammar.first is None or grammar.first is ANY:
        return True
    return all(grammar.first.match(each.text) and not each.is_expanded for each in operands)


def _is_one_word(word: Word) -> bool:
    """Return whether the shell turns a word into exactly one word."""
    if not word.is_expanded:
        return True
    source = word.source
    return source[:1] == source[-1:] == '"' and source.count('"') == 2 and "@" not in source


def _find(words: Sequence[Word]) -> WordUses | None:
    """Return how `find` uses the files that it finds, and so the files that its patterns match."""
    reads = changes = is_doubtful = False
    files: list[Word] = []
    texts: list[Word] = []
    for at, word in enumerate(words):
        previous = words[at - 1].text if at else ""
        if word.text.startswith(_FIND_FILES):
            return None
        if word.is_expanded:
            is_doubtful = is_doubtful or any(may_be(word, each) for each in ("-delete", *FIND_ACTIONS, *_FIND_FILES))
        (texts if previous in _FIND_TESTS and not word.is_expanded else files).append(word)
        changes = changes or word.text == "-delete"
        if word.text in FIND_ACTIONS:
            prefix = words[at + 1 : at + 1 + _MAX_PREFIX]
            program_index = program_at(prefix)
            name = (
                ""
                if program_index is None or _is_own(prefix[program_index])
                else prefix[program_index].text.rpartition("/")[2]
            )
            reads = reads or name not in CHANGERS | NEITHER
            changes = changes or name not in READERS | NEITHER
    if reads or changes:
        files, texts = [*files, *texts], []
    return WordUses(tuple(files), tuple(texts), reads, changes, is_doubtful)
