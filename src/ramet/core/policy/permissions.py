"""Permission rules of settings files as data: the text, the list and the file of each rule.

`ramet.agent.files.permissions` reads the rules, and `ramet.tools.permissions` matches them against tool calls. The
rules are sent to sandboxes and recorded in the journal in this form. A rule of `deny` or `ask` narrows; a rule of
`allow` widens.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from msgspec import Struct

Effect = Literal["deny", "ask", "allow"]
EFFECTS: tuple[Effect, ...] = get_args(Effect)
Mode = Literal["default", "plan", "dontAsk", "acceptEdits", "bypassPermissions"]
MODES: tuple[Mode, ...] = get_args(Mode)
#: Modes that only narrow, and so require no trust.
NARROWING_MODES: frozenset[Mode] = frozenset({"plan", "dontAsk"})
#: Modes that allow calls without asking.
WIDENING_MODES: frozenset[Mode] = frozenset({"acceptEdits", "bypassPermissions"})


class PermissionRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A permission rule: `tool`, or `tool(specifier)`."""

    effect: Effect
    tool: str  #: the name as written, which may be an older spelling or contain `*`
    specifier: str | None = None  #: the text in parentheses; None: the whole tool
    source: str  #: the file, for people
    root: str = ""  #: the base folder of a path that begins with one slash
    home: str = ""  #: the folder that `~` stands for
    exceptions: tuple[str, ...] = ()  #: specifiers: a call that certainly fits one is not narrowed by this rule

    @property
    def text(self) -> str:
        """The rule as it was written."""
        text = self.tool if self.specifier is None else f"{self.tool}({self.specifier})"
        return f"{text} except {', '.join(self.exceptions)}" if self.exceptions else text

    def __str__(self) -> str:
        return f"{self.text} (permissions.{self.effect} of {self.source})"


class ModeRule(Struct, frozen=True, kw_only=True):
    """A `defaultMode`, and the file that sets it."""

    mode: Mode
    source: str


class Permissions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rules and modes that apply to a tree.

    Rules of `allow` are included only if their file may widen.
    """

    rules: tuple[PermissionRule, ...] = ()
    modes: tuple[ModeRule, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.modes)

    def with_effect(self, effect: Effect) -> tuple[PermissionRule, ...]:
        return tuple(rule for rule in self.rules if rule.effect == effect)

    def mode(self, mode: Mode) -> ModeRule | None:
        """Return the setting of `mode`, if some file sets it."""
        for each in self.modes:
            if each.mode == mode:
                return each
        return None

    def prevailing_mode(self) -> Mode:
        """Return the mode that decides first, for hooks."""
        order: tuple[Mode, ...] = ("plan", "dontAsk", "bypassPermissions", "acceptEdits")
        return next((mode for mode in order if self.mode(mode) is not None), "default")

    def without_mode(self, mode: Mode) -> Permissions:
        """Return the same rules, and the other modes."""
        return Permissions(rules=self.rules, modes=tuple(each for each in self.modes if each.mode != mode))

    def narrowing(self) -> Permissions:
        """Return only the rules and modes that narrow."""
        return Permissions(
            rules=tuple(rule for rule in self.rules if rule.effect != "allow"),
            modes=tuple(each for each in self.modes if each.mode in NARROWING_MODES),
        )

    def merge(self, other: Permissions) -> Permissions:
        """Return the rules and modes of both, each once."""
        rules = dict.fromkeys((*self.rules, *other.rules))
        modes = dict.fromkeys((*self.modes, *other.modes))
        return Permissions(rules=tuple(rules), modes=tuple(modes))


NO_PERMISSIONS = Permissions()


class Ruling(NamedTuple):
    """The verdict of the rules on one tool call, or None where no rule names the call."""

    verdict: Effect | None = None
    reason: str = ""
