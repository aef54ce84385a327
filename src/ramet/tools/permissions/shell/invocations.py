"""Find every spelling of the programs that a shell command starts, so that a narrowing rule matches one of them.

`FOO=1 sudo /bin/rm -r x` is also `sudo /bin/rm -r x`, `/bin/rm -r x` and `rm -r x`; `sh -c 'rm x'` is also `rm x`. A
text that is not understood is `unknown`. The actions of an agent's own program cannot be seen here: a script is its
name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import pairwise

from ramet.tools.permissions.shell.commands import parse
from ramet.tools.permissions.shell.expansions import Variables, is_pattern, may_be, may_be_option, without_variables
from ramet.tools.permissions.shell.find_command import TooManyActions, started_by_find
from ramet.tools.permissions.shell.options import Options, read_options, replaced_in, shell_script
from ramet.tools.permissions.shell.programs import (
    ASSIGNING,
    BASHES,
    EVALUATING,
    FIND_ACTIONS,
    FOREIGN_SHELLS,
    LOOSE_WRAPPERS,
    NAMING,
    PROGRAM_VARIABLES,
    RUN_VARIABLES,
    SEDS,
    SHELL_STARTERS,
    SHELLS,
    TEXT_RUNNERS,
    UNKNOWN_RUNNERS,
    WRAPPERS,
    is_harmless,
)
from ramet.tools.permissions.shell.sed_scripts import runs_input, separate_commands
from ramet.tools.permissions.shell.words import Command, Word, first_program, is_unknown_file, spellings, without_name

MAX_OPERANDS = 64  #: maximum words among which a program is searched
MAX_DEPTH = 3  #: maximum depth of commands inside the words of commands
MAX_CHAIN = 12  #: maximum chain of programs that start each other
MAX_INVOCATIONS = 2_000
MAX_WORK = 200_000  #: characters of texts inside of texts, and words of commands inside of commands
_NAME = re.compile(r"\w+")
_SUBSTITUTION = re.compile(r"\$\(|`|<\(|\$\{")
#: A subscript that an arithmetic expression evaluates, and bash's tables of names. The last opening bracket is enough:
#: a search from each bracket would take quadratic time.
_EVALUATED = re.compile(r"\[[^\[\]]*(\$\(|`)|BASH_(ALIASES|CMDS)")
_PLAIN = re.compile(r"[\w./:=@%+,~-]*\Z")
#: Operators of `[[` that evaluate adjacent words.
_COMPARISONS = frozenset("-eq -ne -lt -le -gt -ge".split())
_QUOTES = re.compile(r"[\"'\\]")
#: Syntax that `sh` reads differently from bash.
_OF_BASH = re.compile(r"\$'|&>")
_TOKEN = re.compile(r"[^\s\"'`;|&(){}\[\],<>$!=:@\\]+")


@dataclass
class Invocations:
    """The programs that a text may start. `unknown`: more may start than the text shows."""

    texts: dict[str, None] = field(default_factory=dict)  #: in the order in which they were found
    commands: list[Command] = field(default_factory=list)
    unknown: bool = False
    prefixes: dict[str, None] = field(default_factory=dict)  #: starts of commands whose rest is unknown so far
    operands: dict[tuple[str, ...], None] = field(default_factory=dict)  #: words of programs that may start any of them
    patterns: dict[str, None] = field(default_factory=dict)  #: patterns of file names among such words
    variables: Variables = field(default_factory=Variables)
    _unwrapped_commands: set[tuple[tuple[Word, ...], int]] = field(default_factory=set)
    _chain: int = 0
    _work: int = 0

    def add_text(self, text: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.unknown = True
        if depth > MAX_DEPTH or not self._spend_work(len(text) if depth else 0):
            return
        parsed = parse(text)
        self.unknown = self.unknown or parsed.doubtful
        for each in parsed.expressions:
            self.variables.evaluate(each)
        for each in parsed.parameters:
            self._note_variables((Word(self.variables.parameter(each)),))
        self._add(text.strip())
        for command in parsed.commands:
            self.commands.append(command)
            self._add(command.text)
            self.unwrap(command.words, depth)
            self._read_texts(command)

    def _spend_work(self, amount: int) -> bool:
        """Return whether the work budget allows `amount` more."""
        self._work += amount
        self.unknown = self.unknown or self._work > MAX_WORK
        return self._work <= MAX_WORK

    def unwrap(self, words: tuple[Word, ...], depth: int) -> None:
        """Add what the words of a command start."""
        if (
            self._work > MAX_WORK or (words, depth) in self._unwrapped_commands
        ):  # It is already unknown, or already processed.
            return
        if self._chain >= MAX_CHAIN or not self._spend_work(len(words)):
            self.unknown = True
            return
        self._unwrapped_commands.add((words, depth))
        self._chain += 1
        self.unknown = self.unknown or any(_EVALUATED.search(each.text) for each in words)
        first = first_program(words)
        if (
            words[first : first + 1]
            and words[first].text not in ("[", "test")
            and not _COMPARISONS.isdisjoint(each.text for each in words)
        ):
            self.variables.compare(words)  # Of `[[`, which may be in several pieces.
        self.variables.subscripts(each for each in words if each.text.startswith("{"))  # As in `{a[i]}>file`.
        self._assign(words[:first])
        if words[first:]:
            self._start(words[first:], depth)
        self._chain -= 1

    def _start(self, words: tuple[Word, ...], depth: int) -> None:
        self._spell(words)
        program, operands = words[0], words[1:]
        self.unknown = self.unknown or program.is_expanded
        name = program.text.rpartition("/")[2]
        if name in SHELLS:
            self._shell(name, operands, depth)
        elif name in TEXT_RUNNERS:
            self._texts(name, operands, depth)
        elif name in UNKNOWN_RUNNERS:
            self.unknown = True
            self._loose(operands, depth)
        elif name in (".", "source"):
            self._file(operands[1:] if operands and operands[0].text == "--" else operands)
        elif name == "alias":
            self._alias(operands, depth)
        elif name == "find":
            self._find(operands, depth)
        elif name in ("for", "select"):
            self._note_variables(operands[:1])
            self.variables.loop(operands)
            self.unwrap(operands[[*(each.text for each in operands), "do"].index("do") + 1 :], depth)
        elif name in WRAPPERS:
            self._wrapper(name, operands, depth)
        elif name in LOOSE_WRAPPERS:
            self._loose(operands, depth)
            candidates = [each for each in operands if not each.text.startswith("-")]
            self.unknown = self.unknown or (name in SHELL_STARTERS and len(candidates) < 2)
            if name in SHELL_STARTERS:
                self._need_no_bash(operands)
        elif name in SEDS:
            self._sed(operands, depth)
        elif is_harmless(name, operands):
            self._harmless(name, operands)
        else:
            self._any(operands, depth)

    # ---- the operands of different kinds of programs

    def _shell(self, name: str, operands: tuple[Word, ...], depth: int) -> None:
        script = shell_script(operands)
        if script is None or len(operands) > MAX_OPERANDS:
            self.unknown = True
            self._loose(operands, depth)
        elif script.text is not None:
            self.unknown = self.unknown or script.text.is_expanded or name in FOREIGN_SHELLS
            if name not in BASHES:
                self._need_no_bash((script.text,))
            self.add_text(script.text.text, depth + 1)
        elif script.file is not None:
            self._file(operands[operands.index(script.file) :])

    def _need_no_bash(self, texts: tuple[Word, ...]) -> None:
        """Set `unknown` if `sh` may read the texts differently from bash."""
        self.unknown = self.unknown or any(_OF_BASH.search(each.text) for each in texts)

    def _file(self, operands: tuple[Word, ...]) -> None:
        """Add a file that a shell reads: a file found by its name may be a program that a rule covers."""
        self.unknown = self.unknown or not operands or is_unknown_file(operands[0])
        if operands:
            self._spell(operands)

    def _texts(self, name: str, operands: tuple[Word, ...], depth: int) -> None:
        self.unknown = self.unknown or any(each.is_expanded for each in operands)
        self.variables.fill(operands)
        if name == "watch":
            self._need_no_bash(operands)
        if name == "ssh" and len([each for each in operands if not each.text.startswith("-")]) < 2:
            self.unknown = True  # The remote side reads its commands.
        self._loose(operands, depth)
        if len(operands) <= MAX_OPERANDS:
            for at in range(len(operands)):
                self.add_text(" ".join(each.text for each in operands[at:]), depth + 1)

    def _alias(self, operands: tuple[Word, ...], depth: int) -> None:
        for each in operands:
            _, is_set, value = each.text.partition("=")
            if is_set or each.is_expanded:
                self.unknown = True
                self.add_text(value, depth + 1)

    def _find(self, operands: tuple[Word, ...], depth: int) -> None:
        for word in operands:
            if word.is_expanded and any(may_be(word, each) for each in FIND_ACTIONS):
                self._need_outside(word, is_option=True)
        programs = started_by_find(operands)
        try:  # Each includes all words after it: twenty of them, in each find of a chain, are millions of words.
            while self._spend_work(len(operands)) and (program := next(programs, None)) is not None:
                self.unwrap(program, depth)
        except TooManyActions:
            self.unknown = True

    def _sed(self, operands: tuple[Word, ...], depth: int) -> None:
        scripts = [text for each in operands for text in without_variables(each)]
        self.unknown = self.unknown or any(runs_input(each) for each in scripts)
        files = [word for previous, word in pairwise(operands) if previous.text in ("-f", "--file")]
        files += [Word(each.text[2:]) for each in operands if each.text.startswith("-f")]
        files += [Word(each.text.partition("=")[2]) for each in operands if each.text.startswith("--file=")]
        self.unknown = self.unknown or any(is_unknown_file(each) for each in files)
        self._add_operands(tuple(Word(separate_commands(each)) for each in scripts))
        self._any(operands, depth)

    def _wrapper(self, name: str, operands: tuple[Word, ...], depth: int) -> None:
        if name == "command" and operands and operands[0].text in ("-v", "-V", "-pv", "-pV"):
            return
        options = read_options(WRAPPERS[name], operands)
        if options is None:
            self.unknown = True
            self._loose(operands, depth)
            return
        program = operands[options.end :]
        while name == "env" and program and "=" in program[0].text:
            self._assign(program[:1])
            program = program[1:]
        if name == "coproc":
            program = without_name(program)
        self._add_operands(operands[: options.end])
        if name == "xargs":
            program = self._xargs_program(options, program)
        self.unwrap(program, depth)
        if name == "flock" and program and program[0].text in ("-c", "--command"):
            self._need_no_bash(program)
            self._loose(program, depth)

    def _xargs_program(self, options: Options, program: tuple[Word, ...]) -> tuple[Word, ...]:
        """Return the program of xargs, with its input in place of the replacement text."""
        if options.replacement:
            return tuple(replaced_in(each, options.replacement) for each in program)
        names = [each.text.rpartition("/")[2] for each in program]
        if names and (names[0] in WRAPPERS or names[0] in LOOSE_WRAPPERS):
            self.unknown = True  # Their program may come from the input.
        for text in spellings(program) if program else ():
            self._begin(f"{text} ")
        return program

    def _loose(self, operands: tuple[Word, ...], depth: int) -> None:
        """Treat each operand as a program, and each that is more than a word as a text."""
        self.unknown = self.unknown or len(operands) > MAX_OPERANDS or any(each.is_expanded for each in operands)
        if len(operands) > MAX_OPERANDS:
            return
        for at, word in enumerate(operands):
            self._inner(operands[at:], depth)
            for text in (word.text, word.text.partition("=")[2], word.text[2:] if word.text[:1] == "-" else ""):
                if text and (text is not word.text or not _PLAIN.match(text)):
                    self.add_text(text, depth + 1)

    def _inner(self, words: tuple[Word, ...], depth: int) -> None:
        name = words[0].text.rpartition("/")[2]
        if name in SHELLS or name in TEXT_RUNNERS or name in WRAPPERS or name in LOOSE_WRAPPERS or name == "find":
            self.unwrap(words, depth)
        else:
            self._spell(words)

    def _harmless(self, name: str, operands: tuple[Word, ...]) -> None:
        if name in ASSIGNING:
            self._assign(operands)
        if name in EVALUATING:
            self._variables(operands)
            self._evaluate(name, operands)
        if name == "hash" and any(each.is_expanded or re.match("-[a-z]*p", each.text) for each in operands):
            self.unknown = True
        if name == "printf" and operands and (operands[0].text.startswith("-v") or may_be_option(operands[0])):
            self._need_outside(operands[0], is_option=True)
        if name in EVALUATING - {"printf"} and any(_SUBSTITUTION.search(each.text) for each in operands):
            self.unknown = True
        if name in ("set", "shopt"):
            self._set_options(name, operands)
        if name in ("cd", "pushd", "popd"):
            self.variables.others.add("PWD")

    def _set_options(self, name: str, operands: tuple[Word, ...]) -> None:
        """Note `set -k`, with which assignments among the operands of any program count."""
        for each in operands:
            if each.text == "--":
                return
            if each.text == "keyword" or (name == "set" and re.match("-[a-zA-Z]*k", each.text)):
                self.unknown = True
            if may_be_option(each):
                self._need_outside(each, is_option=True)

    def _evaluate(self, name: str, operands: tuple[Word, ...]) -> None:
        """Note what a builtin evaluates, and the variables that it sets."""
        if name in NAMING:
            if name in ("read", "getopts"):
                self.variables.fill(operands)
                self._note_variables(operands)
            options = "".join(each.text for each in operands if each.text[:1] == "-")
            expanded_names = [each for each in operands if each.is_expanded and "=" not in each.literal]
            self.unknown = (
                self.unknown or bool(expanded_names) or (name in ASSIGNING and not {*"in"}.isdisjoint(options))
            )
            self.variables.subscripts(operands)
        if name == "let":
            self.variables.compare(operands)
        if name in ("[", "[[", "test"):
            tested = [following for previous, following in pairwise(operands) if previous.text == "-v"]
            for each in tested:
                self.variables.evaluate(each.source)
            for previous, following in pairwise(operands):
                if name != "[[" and previous.is_expanded and following.is_expanded:
                    self._need_outside(previous, is_option=True)  # It may become `-v`.

    def _need_outside(self, word: Word, *, is_option: bool = False) -> None:
        """Require that a word's variables come from outside of the text; otherwise set `unknown`."""
        self.unknown = self.unknown or not self.variables.from_outside(word, is_option=is_option)

    def _any(self, operands: tuple[Word, ...], depth: int) -> None:
        """Add what the operands of an unknown program may start."""
        self._add_operands(operands)
        operands = operands[:MAX_INVOCATIONS]  # With more words it is already unknown.
        for at, word in enumerate(operands):
            for text in without_variables(word):
                name = text.rpartition("/")[2]
                if name in SHELLS or name in WRAPPERS or name in LOOSE_WRAPPERS:
                    self.unwrap((Word(text) if word.is_expanded else word, *operands[at + 1 :]), depth)
            if word.is_expanded and is_pattern(word) and not may_be_option(word):
                self.patterns[word.text.rpartition("/")[2]] = None
            elif word.is_expanded:
                self._need_outside(word)
        self.unknown = self.unknown or any("alias." in each.text for each in operands)  # Of git.

    # ---- notes

    def _assign(self, words: tuple[Word, ...]) -> None:
        for word in words:
            name, is_set, value = word.text.partition("=")
            match = _NAME.match(name)
            if match is not None and (match[0] in RUN_VARIABLES or match[0].startswith("BASH_FUNC")):
                self.unknown = True
            self.variables.assign(word)
            if match is not None and PROGRAM_VARIABLES.match(match[0]):
                self.unknown = self.unknown or name.endswith("+")
                if word.is_expanded:
                    self._need_outside(word)
            if is_set:
                self.unknown = self.unknown or _SUBSTITUTION.search(value) is not None
                self._add_operands((Word(value, word.is_expanded, source=word.source.partition("=")[2]),))

    def _variables(self, names: tuple[Word, ...]) -> None:
        self.unknown = self.unknown or any(each.text in RUN_VARIABLES for each in names)

    def _note_variables(self, names: tuple[Word, ...]) -> None:
        """Note variables with values that rules cannot check: a shell or a program may run such a value."""
        self._variables(names)
        self.unknown = self.unknown or any(PROGRAM_VARIABLES.match(each.text) for each in names)

    def _read_texts(self, command: Command) -> None:
        """Note the here-documents that a command reads, if the command may start their contents."""
        words = command.words[first_program(command.words) :]
        files = [target for operator, target in command.redirections if operator not in ("<<", "<<<")]
        if any(_SUBSTITUTION.search(each.text) for each in files):
            self.unknown = True  # Bash expands the target of `>&` once more.
        texts = [target for operator, target in command.redirections if operator in ("<<", "<<<")]
        if words and texts and not is_harmless(words[0].text.rpartition("/")[2], words[1:]):
            self._add_operands(tuple(texts))
        evaluated = _SUBSTITUTION if words and words[0].text in EVALUATING else _EVALUATED
        self.unknown = self.unknown or any(evaluated.search(each.text) for each in texts)

    def _add_operands(self, words: tuple[Word, ...]) -> None:
        plain = tuple(each.text for each in words)
        tokens = tuple(token for each in plain for token in _TOKEN.findall(each))
        unquoted = tuple(token for each in plain for token in _TOKEN.findall(_QUOTES.sub("", each)))
        variants = [without_variables(each) for each in words]
        emptied, filled = (
            tuple(token for each in variants for token in _TOKEN.findall(each[which])) for which in (0, -1)
        )
        for each in dict.fromkeys((plain, tokens, unquoted, emptied, filled)):
            if len(each) > MAX_INVOCATIONS or len(self.operands) > MAX_INVOCATIONS:
                self.unknown = True
            elif each:
                self.operands[each] = None

    def _spell(self, words: tuple[Word, ...]) -> None:
        for text in spellings(words):
            self._add(text)
        at = next((at for at, word in enumerate(words) if word.is_expanded), 0)
        if at:
            known = (*words[:at], Word(words[at].literal))
            for text in spellings(known):
                self._begin(text)

    def _begin(self, text: str) -> None:
        if len(self.prefixes) < MAX_INVOCATIONS:
            self.prefixes[text] = None
        else:
            self.unknown = True

    def _add(self, text: str) -> None:
        if len(self.texts) >= MAX_INVOCATIONS:
            self.unknown = True
        else:
            self.texts[text] = None


def invocations(text: str) -> Invocations:
    """Return every spelling of what `text` starts."""
    found = Invocations()
    found.add_text(text, 0)
    found.unknown = found.unknown or found.variables.are_unknown()
    return found
