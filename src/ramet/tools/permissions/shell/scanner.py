"""Scan the text of a shell command in one pass, and find its simple commands, their words and their redirections."""

from __future__ import annotations

import re

from ramet.tools.permissions.shell.expansions import (
    UNKNOWN_EXPRESSION,
    expressions_in,
    is_run,
    parenthesized_expression,
)
from ramet.tools.permissions.shell.here_documents import Document, ending
from ramet.tools.permissions.shell.nesting import Frame
from ramet.tools.permissions.shell.words import Command, Redirection, Word, begins_case, with_document

MAX_NESTING = 30
MAX_EXPRESSIONS = 500  #: of arithmetic
MAX_DOCUMENTS = 20  #: here-documents that begin on one line
_BLANKS = " \t"
_FD = re.compile(r"\d+\Z")
_VARIABLE_LETTER = re.compile(r"[A-Za-z0-9_@*#?$!-]")  #: characters that may follow the dollar of a variable
_REDIRECTION = re.compile(r"<<<|<<-?|<>|>>|>\||[<>]&|[<>]")
_SPECIAL_WORDS = frozenset({"[", "[[", "]", "]]", "{", "}", "{}"})


class Scanner:
    """A scanner of one text. `document`: the text is a here-document's, in which only substitutions are run."""

    def __init__(self, text: str, *, document: bool = False) -> None:
        self.text, self.at = text, 0
        self.commands: list[Command] = []
        self.certain = True
        self.doubtful = False  #: a shell may split the text differently
        self.expressions: list[
            str
        ] = []  #: arithmetic expressions and subscripts: a shell evaluates the values of names
        self.parameters: list[str] = []  #: the contents of `${…}`
        self.frames = [Frame("", 0, is_quoted=document, document=document)]
        self._documents: list[Document] = []
        self._arithmetic_end = 0
        self._line = 0  #: number of commands found before this line

    def scan(self) -> None:
        while self.at < len(self.text):
            frame = self.frames[-1]
            if frame.is_quoted:
                self._scan_quoted(frame)
            elif frame.closer == "}":
                self._scan_parameter(frame)
            else:
                self._scan_plain(frame)
        if len(self.frames) > 1 or self.frames[-1].is_quoted != self.frames[-1].document:
            self._doubt()  # Something is not closed.
        while self.frames:
            self._end_command(self.frames[-1], len(self.text))
            self.frames.pop()
        if self._documents:
            self._doubt()

    # ---- one character, by its context

    def _scan_plain(self, frame: Frame) -> None:
        char = self.text[self.at]
        if not frame.in_word:
            frame.word_start = self.at
        if char in _BLANKS:
            self._end_word(frame)
            self.at += 1
        elif char == "\n" or char in ";|&":
            self._scan_operator(frame, char)
        elif char == "(":
            self._scan_parenthesis(frame)
        elif char == ")":
            self._close_or_end(frame)
        elif char in "<>":
            self._scan_redirection(frame)
        elif char == "#" and not frame.in_word:
            self._skip_comment(frame)
        elif char == "'":
            self._scan_single_quotes(frame)
        elif char == '"':
            frame.in_word = frame.is_quoted = True
            self.at += 1
        elif char == "\\":
            self._scan_escape(frame)
        elif char in "$`":
            self._scan_expansion(frame)
        else:
            if char in "*?[{" and not (char == "*" and self._multiplies(frame)):
                frame.expand()
            self._add(frame, char, 1)

    def _scan_quoted(self, frame: Frame) -> None:
        char = self.text[self.at]
        if char == '"' and not frame.document:
            frame.is_quoted = False
            self.at += 1
        elif char == "\\":
            self._scan_escape(frame)
        elif char in "$`":
            self._scan_expansion(frame)
        else:
            self._add(frame, char, 1)

    def _scan_parameter(self, frame: Frame) -> None:
        """Scan inside `${…}`: only its end and nested constructs matter."""
        char = self.text[self.at]
        if char == "}":
            content = self.text[frame.start : self.at].replace("\\\n", "")
            self.parameters.append(content)
            self.expressions += expressions_in(content)
            if is_run(content):
                self._doubt()
            self._close()
        elif char in "$`":
            self._scan_expansion(frame)
        elif char in "<>" and self.text[self.at + 1 : self.at + 2] == "(":
            self._open(")", 2)
        elif char == "'":
            if any(each.is_quoted for each in self.frames):
                self._doubt()  # Shells differ in whether it quotes there.
            start = self.at
            self._scan_single_quotes(frame)
            if "$(" in self.text[start : self.at] or "`" in self.text[start : self.at]:
                self._doubt()  # In a subscript it is evaluated.
        elif char == '"':
            frame.is_quoted = True
            self.at += 1
        else:
            self.at += 2 if char == "\\" else 1

    # ---- pieces

    def _add(self, frame: Frame, letters: str, consumed: int) -> None:
        frame.in_word = True
        frame.letters.append(letters)
        self.at += consumed

    def _doubt(self) -> None:
        self.certain, self.doubtful = False, True

    def _in_backquotes(self) -> bool:
        return any(each.closer == "`" for each in self.frames)

    def _scan_escape(self, frame: Frame) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if self._in_backquotes():
            self._doubt()  # A backslash is read once for the backquotes, and again for their contents.
        if following == "\n":  # The line continues.
            if frame.in_word and not self.text.endswith("\\\n", 0, self.at):
                self._doubt_split_operator(self.at, ("[",))
            self.at += 2
        elif frame.is_quoted and following not in tuple('$`"\\'):
            self._add(frame, "\\" + following, 2)
        else:
            self._add(frame, following, 2)

    def _skip_comment(self, frame: Frame) -> None:
        """Skip a comment: to the end of its line, or of the enclosing backquotes."""
        if self.at < self._arithmetic_end:
            self._doubt()  # In arithmetic it is no comment.
        ends = [self.text.find("\n", self.at)]
        if self._in_backquotes():
            ends.append(self.text.find("`", self.at))
        self._end_command(frame, self.at)
        self.at = frame.start = min((each for each in ends if each >= 0), default=len(self.text))

    def _scan_single_quotes(self, frame: Frame) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self._doubt()
            end = len(self.text)
        if self._in_backquotes() and "`" in self.text[self.at : end]:
            self._doubt()
        self._add(frame, self.text[self.at + 1 : end], end + 1 - self.at)

    def _scan_expansion(self, frame: Frame) -> None:
        """Scan `$(…)`, `${…}`, `$'…'`, a backquote, or a variable's name."""
        frame.expand()
        frame.in_word = frame.is_replaced = True
        text, at = self.text, self.at
        if text[at] == "`":
            if self._in_backquotes():
                self._close_backquote()
            else:
                self._open("`", 1)
            return
        following = text[at + 1 : at + 2]
        if following == "[":
            self.expressions.append(UNKNOWN_EXPRESSION)  # The old form of arithmetic.
        if following == "(":
            self._doubt_split_operator(at + 2, ("(",))
            self._note_arithmetic(at + 1)
            self._open(")", 2)
        elif following == "{":
            self._open("}", 2)
        elif following == "'" and not frame.is_quoted:
            self._skip_ansi_quotes(frame, _ansi_end(text, at + 2))
        else:  # Without a following name, the dollar is a literal, and so is the following text.
            name = following if _VARIABLE_LETTER.match(following) else ""
            frame.letters.append(f"${name}")
            self.at += 1 + len(name)
            self._doubt_split_operator(at + 1, ("",))

    def _skip_ansi_quotes(self, frame: Frame, end: int) -> None:
        """Skip `$'…'`, in which a backslash escapes a quote. Not every shell supports it."""
        self.certain = False
        if frame.closer == "}" and any(each.is_quoted for each in self.frames):
            self._doubt()  # Shells differ in whether it quotes there.
        if self._in_backquotes() and "`" in self.text[self.at : end]:
            self._doubt()
        self.at = end

    def _doubt_split_operator(self, at: int, second_halves: tuple[str, ...]) -> None:
        """Doubt an operator that a line continuation at `at` splits before its second half, one of `second_halves`."""
        if self.text.startswith("\\\n", at):
            while self.text.startswith("\\\n", at):
                at += 2
            if self.text.startswith(second_halves, at):
                self._doubt()

    def _scan_parenthesis(self, frame: Frame) -> None:
        is_array = frame.in_word and "".join(frame.letters[-1:]).endswith("=")
        self._doubt_in_array(frame)
        self._end_command(frame, self.at)
        self._doubt_split_operator(self.at + 1, ("(",))
        self._note_arithmetic(self.at)
        self._open(")", 1)
        self.frames[-1].is_array = is_array

    def _doubt_in_array(self, frame: Frame) -> None:
        """Doubt an operator among the values of an array: bash skips the line, and continues with the next one."""
        if frame.is_array:
            self._doubt()

    def _note_arithmetic(self, at: int) -> None:
        """Note the expression in double parentheses at this place, if there is one."""
        if len(self.expressions) >= MAX_EXPRESSIONS:
            self._doubt()
        elif self.text.startswith("((", at):
            expression = parenthesized_expression(self.text, at)
            self.expressions.append(expression)
            if expression.endswith("))"):
                self._arithmetic_end = max(self._arithmetic_end, at + len(expression))

    def _multiplies(self, frame: Frame) -> bool:
        """Return whether a star is a separate word inside an arithmetic expression."""
        is_separate = not frame.in_word and self.text[self.at + 1 : self.at + 2] in tuple(_BLANKS)
        return is_separate and bool(frame.words) and self.at < self._arithmetic_end

    def _scan_operator(self, frame: Frame, char: str) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if char != "\n":
            self._doubt_in_array(frame)
        if char == "&" and following == ">":  # `&>` writes to a file.
            self._end_word(frame)
            self.at += 1
            return
        self._end_command(frame, self.at)
        self.at += 1
        if char == "\n":
            self._read_documents()
        frame.start = self.at

    def _read_documents(self) -> None:
        """Skip the texts of the here-documents that the line began, and find the substitutions in them."""
        line, self._line = self._line, len(self.commands)
        if len(self._documents) > MAX_DOCUMENTS:
            self._doubt()
            self._documents = self._documents[:MAX_DOCUMENTS]
        for document in self._documents:
            end = ending(document, self.text, self.at, nested=len(self.frames) > 1)
            body, self.at = self.text[self.at : end.line_start], end.next_start
            if document.depth != len(self.frames) or document.name.is_expanded or "\r" in document.name.text:
                self._doubt()
            if end.doubtful or (self._in_backquotes() and "`" in body):
                self._doubt()
            self.commands[line:] = [with_document(each, document.name, body) for each in self.commands[line:]]
            if not document.is_quoted:
                inner = Scanner(body, document=True)
                inner.scan()
                self.commands += inner.commands
                self.expressions += inner.expressions
                self.parameters += inner.parameters
                self.doubtful = self.doubtful or inner.doubtful
        self._documents, self._line = [], len(self.commands)

    def _scan_redirection(self, frame: Frame) -> None:
        text = self.text
        if text[self.at + 1 : self.at + 2] == "(":  # A process whose output, or input, replaces a file.
            frame.expand()
            frame.in_word = frame.is_replaced = True
            self._open(")", 2)
            return
        self._doubt_in_array(frame)
        if frame.in_word and _FD.match("".join(frame.letters)):
            frame.in_word, frame.letters = False, []
        self._end_word(frame)
        match = _REDIRECTION.match(text, self.at)
        assert match is not None, "it begins with < or >"
        frame.operator = match.group()
        if frame.operator.startswith("<<") and frame.operator != "<<<":
            self.certain = False
        self.at = frame.operator_end = match.end()
        self._doubt_split_operator(self.at, ("<", ">", "(", "&", "-", "|"))

    # ---- nesting

    def _open(self, closer: str, consumed: int) -> None:
        if closer != ")" or self.text[self.at] != "(":  # A subshell in parentheses is only a group.
            self.certain = False
        self.at += consumed
        if len(self.frames) >= MAX_NESTING:
            self._doubt()
            return
        self.frames.append(Frame(closer, self.at))

    def _close(self) -> None:
        self._end_command(self.frames[-1], self.at)
        inner = self.frames.pop()
        self.at += 1
        if inner.is_array and self.text[self.at : self.at + 1] not in ("", *_BLANKS, *"\n;&|<>)`"):
            self._doubt()  # The same word continues, and a command may follow it.
        outer = self.frames[-1]
        if inner.closer == ")" and not outer.is_quoted and not outer.in_word:
            outer.start = self.at

    def _close_or_end(self, frame: Frame) -> None:
        if frame.closer == ")":
            self._close()
            return
        self.certain = False  # Such as a pattern of `case`.
        self._end_command(frame, self.at)
        self.at += 1
        frame.start = self.at

    def _close_backquote(self) -> None:
        while self.frames[-1].closer != "`":
            self._end_command(self.frames[-1], self.at)
            self.frames.pop()
            self._doubt()
        self._close()

    # ---- results

    def _end_word(self, frame: Frame) -> None:
        if not frame.in_word:
            return
        text = "".join(frame.letters)
        is_expanded = frame.is_expanded and (frame.is_replaced or text not in _SPECIAL_WORDS)
        word = Word(text, is_expanded, frame.literal, self.text[frame.word_start : self.at])
        frame.letters, frame.literal = [], ""
        frame.in_word = frame.is_expanded = frame.is_replaced = False
        if frame.operator:
            frame.redirections.append(Redirection(frame.operator, word))
            if frame.operator in ("<<", "<<-"):
                source = self.text[frame.operator_end : self.at].replace("\\\n", "")
                is_quoted = any(char in source for char in "'\"\\")
                self._documents.append(Document(word, is_quoted, frame.operator == "<<-", len(self.frames)))
            frame.operator = ""
        else:
            frame.words.append(word)

    def _end_command(self, frame: Frame, end: int) -> None:
        self._end_word(frame)
        if frame.closer != "}" and not frame.document and (frame.words or frame.redirections):
            text = self.text[frame.start : end].replace("\\\n", "").strip()
            if len(self.frames) > 1 and begins_case(frame.words):
                self._doubt()  # The parenthesis of its first pattern is taken for the end of the substitution.
            self.commands.append(Command(text, tuple(frame.words), tuple(frame.redirections)))
        frame.words, frame.redirections, frame.operator = [], [], ""
        frame.start = end


def _ansi_end(text: str, at: int) -> int:
    """Return the offset after `$'…'`, in which a backslash escapes a quote."""
    while at < len(text) and text[at] != "'":
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))
