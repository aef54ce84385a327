"""Parse the options of programs that start programs, as far as needed to find the started program."""

from __future__ import annotations

from typing import NamedTuple

from ramet.tools.permissions.shell.programs import Wrapper
from ramet.tools.permissions.shell.words import Word

#: Options of shells that do not change the source of commands; `o` and `O` take a word. `k`, which is also `-o
#: keyword`, is not among them: with it, assignments among the operands of any program count.
_SHELL_FLAGS = frozenset("abefhilmnpruvxBCEHPT")
_SHELL_LONG = frozenset({"--login", "--noediting", "--noprofile", "--norc", "--posix", "--restricted", "--verbose"})
_HARMLESS_LONG = frozenset({"--help", "--version"})


class Options(NamedTuple):
    """The end of a wrapper's options, and the word that xargs replaces by its input."""

    end: int
    replacement: str = ""


class Script(NamedTuple):
    """The script of a shell: a text, a file, or nothing."""

    text: Word | None = None
    file: Word | None = None


def read_options(wrapper: Wrapper, operands: tuple[Word, ...]) -> Options | None:
    """Return the end of a wrapper's options, where its program is; None if a word before it is not understood."""
    at, replacement = 0, ""
    while at < len(operands):
        word = operands[at]
        if word.text == "--":
            at += 1
            break
        if not word.text.startswith("-"):
            break
        if word.is_expanded and not word.text.startswith(("-I{}", "-i{}")):
            return None
        option = _read_option(wrapper, word.text)
        if option is None:
            return None
        letter, attached = option
        if word.text.startswith("--r") and "=" in word.text:
            replacement = word.text.partition("=")[2]  # Of xargs: --replace=…
        takes_next = letter != "" and letter in wrapper.values and not attached
        if letter in ("I", "i"):
            replacement = attached or (operands[at + 1].text if takes_next and at + 1 < len(operands) else "{}")
        if takes_next and at + 1 < len(operands) and operands[at + 1].is_expanded and letter != "I":
            return None  # Without quotes the shell may turn it into no word, or several.
        at += 2 if takes_next else 1
    if any(word.is_expanded for word in operands[at : at + wrapper.positionals]):
        return None
    return Options(at + wrapper.positionals, replacement)


def _read_option(wrapper: Wrapper, text: str) -> tuple[str, str] | None:
    """Return the last letter of an option word, and its attached text; None if unknown."""
    if text == "-":
        return ("", "")
    if text.startswith("--"):
        known = text in wrapper.long_flags or ("=" in text and not wrapper.reads_text)
        return ("", "") if known else None
    for at, letter in enumerate(text[1:], start=1):
        if letter in wrapper.values:
            return letter, text[at + 1 :]
        if letter not in wrapper.flags:
            return None
        if letter in "eil" and "I" in wrapper.values:  # Of xargs: the following text is attached.
            return letter, text[at + 1 :]
    return "", ""


def replaced_in(word: Word, replacement: str) -> Word:
    """Return a word whose text after `replacement` is unknown."""
    prefix, separator, _ = word.text.partition(replacement)
    return Word(word.text, True, prefix) if separator else word


def shell_script(operands: tuple[Word, ...]) -> Script | None:
    """Return the script that a shell with these words runs; None if it reads its input, or is not understood."""
    at, is_text = 0, False
    while at < len(operands) and operands[at].text[:1] in ("-", "+") and len(operands[at].text) > 1:
        word = operands[at]
        if word.text in _HARMLESS_LONG:
            return Script()
        if word.text == "--":
            at += 1
            break
        if word.is_expanded:
            return None
        if word.text.startswith("--"):
            if word.text not in _SHELL_LONG:
                return None
        else:
            letters = word.text[1:]
            if not set(letters) <= _SHELL_FLAGS | {"c", "o", "O"} or letters.count("o") + letters.count("O") > 1:
                return None
            is_text = is_text or "c" in letters
            if "o" in letters or "O" in letters:
                if any(each.is_expanded or each.text == "keyword" for each in operands[at + 1 : at + 2]):
                    return None
                at += 1
        at += 1
    if at >= len(operands) or operands[at].text == "-":
        return None
    return Script(text=operands[at]) if is_text else Script(file=operands[at])
