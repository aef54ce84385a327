"""Determine what a shell may make of expanded words, and which expressions evaluate the values of variables.

Arithmetic evaluates the value of a variable as an expression, and a subscript in the expression may start a program. So
such a variable must hold a number, or come from outside of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ramet.tools.permissions.shell.words import Word

MAX_EXPRESSION = 500  #: maximum characters of an arithmetic expression
UNKNOWN_EXPRESSION = "$_"  #: an unknown expression
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_PARAMETER_NAME = re.compile(r"[!#]?(?:\w+|[@*#?$!-])")
_NUMBER = re.compile(r"-?\d+\Z")
_WRITTEN_NUMBER = re.compile(r"[A-Za-z_]\w*=\"?\$\(\(.*\)\)\"?\Z", re.DOTALL)
_NUMBERS = re.compile(r"\{-?\d+\.\.-?\d+(\.\.-?\d+)?\}\Z")
#: Expansions whose value the text does not determine: substitutions, positional parameters, quotes.
_UNKNOWN_VALUE = re.compile(r"\$\((?!\()|`|['\"\\]|\$\{?[1-9@*_]")
#: Variables that bash itself sets from commands.
_SET_BY_BASH = re.compile(r"(_|REPLY|MAPFILE|OPTARG|COPROC|DIRSTACK|FUNCNAME|OLDPWD|(BASH|COMP|READLINE)\w*)\Z")
#: Variables that evaluate what is assigned to them.
_INTEGERS = frozenset("BASHPID EUID HISTCMD LINENO OPTIND PPID RANDOM SECONDS SRANDOM UID".split())
_QUOTES = re.compile(r"[\"'\\]")
#: A whole variable. `instead`: a plain text for an unset variable, or for a set one.
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?[-+](?P<instead>[\w./:@%+,=-]*))?\})")
_OTHER_EXPANSION = re.compile(r"[$`*?\[<>]|\{(?!\})")


def parenthesized_expression(text: str, at: int) -> str:
    """Return the expression in the parentheses that open at `at`; `UNKNOWN_EXPRESSION` if its end is not found."""
    depth = 0
    for end in range(at, min(len(text), at + MAX_EXPRESSION)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[at : end + 1]
    return UNKNOWN_EXPRESSION


def expressions_in(content: str) -> Iterator[str]:
    """Yield what `${content}` evaluates: a subscript, an offset in a text, and the variable that `!` names."""
    match = _PARAMETER_NAME.match(content)
    if match is None:
        return
    name, rest = match[0], content[match.end() :]
    if name.startswith("!") and len(name) > 1:
        yield name
    if rest.startswith("["):
        subscript, _, after = rest.partition("]")
        yield rest if "[" in subscript[1:] else subscript
        rest = after
    if rest.startswith(":") and rest[1:2] not in ("-", "=", "?", "+"):
        yield rest


def is_run(content: str) -> bool:
    """Return whether `${content}` runs the value of its variable, as a prompt does."""
    return content.endswith("@P")


def is_pattern(word: Word) -> bool:
    """Return whether an expanded word is only a pattern of file names, without braces."""
    return bool(word.source) and not re.search(r"[$`{]|[<>]\(", word.source.replace("{}", ""))


def may_be(word: Word, text: str) -> bool:
    """Return whether a word may become `text`."""
    if not word.is_expanded:
        return word.text == text
    return not is_pattern(word) or fits_pattern(word.text, text)


def fits_pattern(pattern: str, text: str) -> bool:
    """Return whether a pattern of file names may match `text`. A bracket matches any text."""
    before, bracket, _ = pattern.partition("[")
    return fnmatchcase(text, before + ("*" if bracket else ""))


def may_be_option(word: Word) -> bool:
    """Return whether an expanded word may become an option: a pattern that begins with a name may not."""
    return word.is_expanded and not (is_pattern(word) and word.literal[:1] not in ("", "-"))


def without_variables(word: Word) -> tuple[str, ...]:
    """Return the values of an expanded word if its variables are empty, and if their `instead` applies."""
    if not word.is_expanded or not word.source:
        return (word.text,)
    variants = (_VARIABLE.sub("", word.source), _VARIABLE.sub(lambda each: each["instead"] or "", word.source))
    return tuple(dict.fromkeys(_QUOTES.sub("", each) for each in variants))


@dataclass
class Variables:
    """The variables that a text sets, and those that must not be set by the text."""

    numbers: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)  #: set to a value that is no number
    _evaluated_names: set[str] = field(default_factory=set)
    _inherited_names: set[str] = field(default_factory=set)

    def assign(self, word: Word) -> None:
        name, is_set, value = word.text.partition("=")
        identifier = _IDENTIFIER.match(name)
        if identifier is None:
            return
        if identifier[0] in _INTEGERS and not _NUMBER.match(value):
            self.evaluate(UNKNOWN_EXPRESSION)
        if is_set and identifier[0] == name and (_WRITTEN_NUMBER.match(word.source) or _NUMBER.match(value)):
            self.numbers.add(name)
        elif is_set:
            self.others.add(identifier[0])
        if identifier[0] != name.rstrip("+"):
            self.evaluate(name[identifier.end() :])

    def fill(self, names: Sequence[Word]) -> None:
        """Note variables that get their values from a command."""
        self.others.update(identifier for each in names for identifier in _IDENTIFIER.findall(each.text))
        self.subscripts(names)

    def subscripts(self, names: Iterable[Word]) -> None:
        """Note the subscripts of names that a builtin reads or sets."""
        for each in names:
            self.evaluate(each.text.partition("[")[2])

    def compare(self, words: Iterable[Word]) -> None:
        """Note words that are evaluated, whatever quotes are around them."""
        for each in words:
            self.evaluate(each.source.replace('"', "") if "$'" in each.source else _QUOTES.sub("", each.source))

    def loop(self, operands: tuple[Word, ...]) -> None:
        """Note the variable of `for name in …`."""
        values = operands[2:]
        is_counted = values and all(_NUMBER.match(each.text) or _NUMBERS.match(each.source) for each in values)
        (self.numbers if is_counted else self.others).update(each.text for each in operands[:1])

    def parameter(self, content: str) -> str:
        """Return the variable that `${name:=value}` sets; empty if `${content}` sets none."""
        match = re.match(r"(\w+)(\[[^\]]*\])?:?=", content)
        if match is None:
            return ""
        self.others.add(match[1])
        return match[1]

    def evaluate(self, text: str) -> None:
        self._evaluated_names.update(_IDENTIFIER.findall(text))
        if _UNKNOWN_VALUE.search(text):
            self._evaluated_names.add("_")

    def from_outside(self, word: Word, *, is_option: bool = False) -> bool:
        """Return whether an expanded word has only variables, and note that the text must not set them.

        `is_option`: the word may be an option only if a variable supplies it completely.
        """
        variables = list(_VARIABLE.finditer(word.source))
        if not variables or "\\\n" in word.source or _OTHER_EXPANSION.search(_VARIABLE.sub("", word.source)):
            return False
        if len([each for each in variables if each["instead"]]) > 1:
            return False
        if is_option and any(each.startswith("-") for each in without_variables(word)):
            return False
        self._inherited_names.update(each[1] or each[2] for each in variables)
        return True

    def are_unknown(self) -> bool:
        """Return whether the text may have set a variable that is evaluated, or assumed to come from outside."""
        if any(_SET_BY_BASH.match(each) for each in self._evaluated_names):
            return True
        is_set = self._inherited_names & (self.others | self.numbers) or self._evaluated_names & self.others
        return bool(is_set) or any(_SET_BY_BASH.match(each) for each in self._inherited_names)
