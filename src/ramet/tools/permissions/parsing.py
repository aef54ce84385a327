"""Parse a permission rule of a settings file: `Tool` or `Tool(specifier)`. A rule that is not understood is refused."""

from __future__ import annotations

import re

from ramet.core.errors import InvalidValue
from ramet.core.policy.permissions import Effect, PermissionRule
from ramet.core.tool_names import EDITING_TOOLS, KNOWN_TOOLS, READING_TOOLS, canonical
from ramet.tools.permissions.command_rules import command_pattern
from ramet.tools.permissions.path_rules import cost, path_pattern

MAX_RULE = 1_000  #: characters
MAX_COST = 100  #: of one path pattern
MAX_PIECES = 20  #: stars of one command pattern
_RULE = re.compile(r"\s*+([A-Za-z_*][\w.*-]*+)\s*+(?:\((.*)\))?\s*+\Z", re.DOTALL)
_DOMAIN = re.compile(r"domain:[A-Za-z0-9*_.:\[\]-]+\Z")
_NAME = re.compile(r"[\w.:*/ -]+\Z")
#: `Bash(command:rm *)` is another tool's notation for an argument, and would match no command.
_ARGUMENT = re.compile(r"(command|description|timeout|run_in_background|dangerouslyDisableSandbox)\s*:")
_ACCEPTED = "a tool's name, or one of Bash(…), Read(…), Edit(…), WebFetch(domain:…), Agent(…), Skill(…)"


def parse_rule(text: str, effect: Effect, *, source: str, field: str, root: str = "", home: str = "") -> PermissionRule:
    """Parse one rule of the list `field`. Raises InvalidValue, with the field and the rule."""
    match = _RULE.match(text) if len(text) <= MAX_RULE and text.isprintable() else None
    if match is None:
        raise InvalidValue(field, text, f"{_ACCEPTED}, of at most {MAX_RULE} characters")
    name, specifier = match[1], match[2]
    _check_name(name, text, effect, field=field, whole=specifier is None)
    if specifier is not None:
        _check_specifier(canonical(name), specifier, text, field=field)
        if specifier.strip() in ("*", "**") and canonical(name) in {"Bash", "Agent", "Skill"}:
            specifier = None
    if specifier is not None and specifier.startswith("~/") and not home:
        raise InvalidValue(field, text, "a path without ~: the home folder is not known")
    return PermissionRule(effect=effect, tool=name, specifier=specifier, source=source, root=root, home=home)


def _check_name(name: str, text: str, effect: Effect, *, field: str, whole: bool) -> None:
    spelling = next((each for each in KNOWN_TOOLS if each.casefold() == name.casefold() and each != name), None)
    if spelling is not None and name not in KNOWN_TOOLS:
        raise InvalidValue(field, text, f"the exact spelling of the tool's name: {spelling}")
    if "*" in name and not whole:
        raise InvalidValue(field, text, "a tool's whole name in front of the parentheses")
    if "*" in name and effect == "allow" and not re.match(r"mcp__[^*]+__", name):
        raise InvalidValue(field, text, "a name without *, or mcp__server__* with the server's name")


def _check_specifier(kind: str, specifier: str, text: str, *, field: str) -> None:
    if not specifier.strip():
        raise InvalidValue(field, text, "something between the parentheses, or no parentheses")
    if kind == "Bash":
        if _ARGUMENT.match(specifier.strip()):
            raise InvalidValue(field, text, "a pattern of commands, such as Bash(npm run test:*)")
        if len(command_pattern(specifier).pieces) > MAX_PIECES:
            raise InvalidValue(field, text, f"a pattern with at most {MAX_PIECES - 1} stars")
    elif kind in READING_TOOLS or kind in EDITING_TOOLS:
        try:
            path_pattern(specifier)
        except InvalidValue as error:
            raise InvalidValue(field, text, error.accepted) from None
        if cost(specifier) > MAX_COST:
            raise InvalidValue(field, text, "a path pattern with fewer alternatives and fewer **")
    elif kind == "WebFetch":
        if not _DOMAIN.match(specifier.strip()):
            raise InvalidValue(field, text, "WebFetch(domain:example.com), or domain:*.example.com")
    elif kind not in ("Agent", "Skill") or not _NAME.match(specifier):
        raise InvalidValue(field, text, _ACCEPTED)
