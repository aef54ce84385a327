"""Apply permission rules to one tool call: deny takes precedence over ask, ask over allow, across all files."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from ipaddress import IPv6Network, ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from msgspec import structs

from ramet.core.policy.permissions import PermissionRule, Permissions, Ruling
from ramet.core.tool_names import COORDINATING_TOOLS, EDITING_TOOLS, READING_TOOLS, SEND_MESSAGE, canonical
from ramet.tools.permissions import command_rules, path_rules
from ramet.tools.permissions.files.command_files import TouchedFile, touched_files
from ramet.tools.permissions.files.globs import TooManyFiles
from ramet.tools.permissions.files.names import FileNames
from ramet.tools.permissions.shell.invocations import Invocations, invocations
from ramet.tools.permissions.worktree_copies import Checkouts

#: Arguments of tools that contain the name of a file or folder.
PATH_ARGUMENTS = ("file_path", "path", "notebook_path")
#: Tools whose path is a folder: a rule that covers all its contents covers the search.
_SEARCHES = frozenset({"Grep", "Glob", "LS"})
_HOST = re.compile(r"[a-z0-9._:-]+\Z")
#: A name whose last part is a number is read as an address by some programs.
_NUMERIC = re.compile(r"(^|\.)(\d+|0x[0-9a-f]*)\Z")
#: IPv6 addresses that embed IPv4 addresses.
_EMBEDDING = tuple(map(IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96", "2002::/16", "2001::/32", "::/96")))
_NO_RULING = Ruling()


class Call(NamedTuple):
    """A tool call. `changes`: the tool may change something outside of ramet."""

    tool: str
    args: Mapping[str, Any]
    cwd: str
    changes: bool = True


def judge(permissions: Permissions, call: Call) -> Ruling:
    return _Judgement(permissions, call).ruling()


def may_change(tool: str, *, read_only: bool) -> bool:
    """Return whether a tool may change something outside of ramet, by its name and by what it declares."""
    return not read_only and tool not in COORDINATING_TOOLS and tool not in READING_TOOLS


class _Judgement:
    """The facts of one call, each computed once and only if a rule needs it."""

    def __init__(self, permissions: Permissions, call: Call) -> None:
        self._permissions, self._call = permissions, call
        self._checkouts = Checkouts()
        self._names: tuple[str, ...] | None = None
        self._run: Invocations | None = None
        self._command_files: tuple[TouchedFile, ...] | None = None

    def ruling(self) -> Ruling:
        denying_rule = self._matching_rule("deny")
        if denying_rule is not None:
            return Ruling("deny", str(denying_rule))
        plan = self._permissions.mode("plan")
        if plan is not None and self._call.changes:
            return Ruling("deny", f"defaultMode plan of {plan.source}: nothing is changed")
        dont_ask = self._permissions.mode("dontAsk")
        asking_rule = self._matching_rule("ask")
        if asking_rule is not None:
            return (
                Ruling("deny", f"{asking_rule}, and {dont_ask.source} says dontAsk")
                if dont_ask
                else Ruling("ask", str(asking_rule))
            )
        if doubt := self._changes_rules() or self._doubt():
            return Ruling("deny" if dont_ask else "ask", doubt)
        permission = self._permission()
        if permission is not None:
            return Ruling("allow", permission)
        if dont_ask is not None and self._call.changes:
            return Ruling("deny", f"no rule allows it, and {dont_ask.source} says dontAsk")
        return _NO_RULING

    # ---- rules that narrow

    def _matching_rule(self, effect: str) -> PermissionRule | None:
        rules = (rule for rule in self._permissions.rules if rule.effect == effect)
        return next((rule for rule in rules if self._fits(rule) and not self._is_excepted(rule)), None)

    def _is_excepted(self, rule: PermissionRule) -> bool:
        """Return whether the call certainly fits an exception of a rule, as it would have to fit a rule of `allow`."""
        call, kind = self._call, canonical(rule.tool)
        if not rule.exceptions or (call.tool == "Bash") is not (kind == "Bash"):
            return False
        if kind == "Bash":
            return command_rules.widens(rule.exceptions, str(call.args.get("command", "")))
        if kind in READING_TOOLS or kind in EDITING_TOOLS:
            rules = (structs.replace(rule, specifier=each) for each in rule.exceptions)
            return bool(self.names) and any(path_rules.widens(each, self.names, call.cwd) for each in rules)
        subjects = self._subjects(kind)
        return all(
            any(_fits_name(each, subject, kind, folded=False) for each in rule.exceptions) for subject in subjects
        )

    def _fits(self, rule: PermissionRule) -> bool:
        if self._call.tool == "Bash" and rule.specifier is not None and rule.tool in (READING_TOOLS | EDITING_TOOLS):
            return self._covers_touched_file(rule)
        if not _covers_tool(rule, self._call.tool):
            return False
        if rule.specifier is None:
            return True
        kind = canonical(rule.tool)
        if kind == "Bash":
            return command_rules.narrows(rule.specifier, self.run)
        if kind in READING_TOOLS or kind in EDITING_TOOLS:
            return not self.names or path_rules.bind(rule, self._call.cwd, self._checkouts).fits(self.names)
        if kind == "WebFetch":
            host = _host(self._call.args.get("url"))
            return host is None or _fits_domain(rule.specifier, host)
        return any(_fits_name(rule.specifier, each, kind, folded=True) for each in self._subjects(kind))

    def _covers_touched_file(self, rule: PermissionRule, *, is_sure: bool = True) -> bool:
        """Return whether a shell command opens, or may open, a file that a rule for Read or Edit covers."""
        bound, editing = path_rules.bind(rule, self._call.cwd, self._checkouts), rule.tool in EDITING_TOOLS
        return any(
            not each.names or bound.fits(each.names)
            for each in self.command_files
            if each.is_sure is is_sure and (each.is_changed if editing else each.is_read)
        )

    def _changes_rules(self) -> str:
        """Return a reason if the call would change a file of the rules, and so the rules of the next run, or ""."""
        tool = self._call.tool
        if tool not in EDITING_TOOLS and tool != "Bash":
            return ""
        files = {name: rule.source for rule in self._permissions.rules for name in _settings_files(rule)}
        if tool in EDITING_TOOLS and files and not self.names:
            return f"it is unknown which file is changed; {next(iter(files.values()))} says what agents may do"
        changing = [name for each in self.command_files if each.is_changed for name in each.names]
        names = self.names if tool in EDITING_TOOLS else changing
        changed = next((files[each] for each in names if each in files), "")
        return f"{changed} says what agents may do" if changed else ""

    def _doubt(self) -> str:
        """Return why it is unclear whether a rule matches; a person then decides."""
        if canonical(self._call.tool) != "Bash":
            return ""
        narrowing_rules = [
            each
            for each in self._permissions.rules
            if each.effect != "allow" and each.specifier is not None and not self._is_excepted(each)
        ]
        rules = [each for each in narrowing_rules if canonical(each.tool) == "Bash"]
        if rules and self.run.unknown:
            return f"the text does not show which programs the command starts; {rules[0]} may forbid one"
        unclear_rule = next((each for each in rules if command_rules.may_narrow(each.specifier or "", self.run)), None)
        if unclear_rule is not None:
            return f"the text does not show whether the command starts a program of {unclear_rule}"
        paths = [each for each in narrowing_rules if each.tool in (READING_TOOLS | EDITING_TOOLS)]
        unclear_rule = next((each for each in paths if self._covers_touched_file(each, is_sure=False)), None)
        return f"the text does not show whether the command opens a file of {unclear_rule}" if unclear_rule else ""

    # ---- rules that widen

    def _permission(self) -> str | None:
        """Return why the call needs no question; None if it does."""
        call, kind = self._call, canonical(self._call.tool)
        rules = [each for each in self._permissions.with_effect("allow") if _allows_tool(each, call.tool)]
        for rule in rules:
            if rule.specifier is None or self._allows(rule, kind):
                return str(rule)
        specifiers = tuple(each.specifier for each in rules if each.specifier is not None)
        if kind == "Bash" and rules and command_rules.widens(specifiers, str(call.args.get("command", ""))):
            return ", ".join(map(str, rules[:3]))
        bypass, edits = self._permissions.mode("bypassPermissions"), self._permissions.mode("acceptEdits")
        if bypass is not None:
            return f"defaultMode bypassPermissions of {bypass.source}"
        if edits is not None and kind in EDITING_TOOLS:
            return f"defaultMode acceptEdits of {edits.source}"
        return None

    def _allows(self, rule: PermissionRule, kind: str) -> bool:
        assert rule.specifier is not None
        if kind == "Bash":
            return False  # All rules for commands decide together.
        if kind in READING_TOOLS or kind in EDITING_TOOLS:
            return bool(self.names) and path_rules.widens(rule, self.names, self._call.cwd)
        if kind == "WebFetch":
            host = _host(self._call.args.get("url"))
            return host is not None and _fits_domain(rule.specifier, host)
        return any(_fits_name(rule.specifier, each, kind, folded=False) for each in self._subjects(kind))

    # ---- what the call is about

    @property
    def run(self) -> Invocations:
        if self._run is None:
            self._run = invocations(str(self._call.args.get("command", "")))
        return self._run

    @property
    def command_files(self) -> tuple[TouchedFile, ...]:
        """Return the files that a shell command names."""
        if self._command_files is None:
            homes = dict.fromkeys(each.home for each in self._permissions.rules if each.home)
            self._command_files = touched_files(
                self.run.commands, str(self._call.args.get("command", "")), self._call.cwd, tuple(homes)
            )
        return self._command_files

    @property
    def names(self) -> tuple[str, ...]:
        """Return every name of the file or folder of the call; empty if unknown."""
        if self._names is None:
            try:
                self._names = tuple(dict.fromkeys(self._find_names()))
            except TooManyFiles:
                self._names = ()
        return self._names

    def _find_names(self) -> Iterator[str]:
        call = self._call
        paths = [call.args[each] for each in PATH_ARGUMENTS if isinstance(call.args.get(each), str)]
        searches, files = call.tool in _SEARCHES, FileNames()
        for each in paths or (["."] if searches else []):
            for name in files.of(each.replace("\0", ""), call.cwd):
                yield name
                if searches:
                    yield f"{name.rstrip('/')}/{path_rules.ANY_CHILD}"

    def _subjects(self, kind: str) -> tuple[str, ...]:
        """Return the names that a rule like `Agent(type)`, `SendMessage(address)`, `Skill(name)` is compared with."""
        if kind == SEND_MESSAGE:
            return (str(self._call.args.get("to", "")),)
        if kind == "Agent":
            agent_type = self._call.args.get("subagent_type")
            return (agent_type,) if isinstance(agent_type, str) and agent_type else ("fork", "general-purpose")
        keys = ("skill", "name", "command")
        return tuple(str(self._call.args[each]).lstrip("/") for each in keys if each in self._call.args)


def _settings_files(rule: PermissionRule) -> tuple[str, ...]:
    """Return the names of the settings file of a rule."""
    path = posixpath.normpath(posixpath.join(rule.root, rule.source))
    return (path, os.path.realpath(path))


def _covers_tool(rule: PermissionRule, tool: str) -> bool:
    """Return whether a rule of `deny` or `ask` covers a tool: names of groups cover the whole group."""
    name, tool = canonical(rule.tool), canonical(tool)
    if name == tool:
        return True
    if name == "Read" or (rule.specifier is not None and name in READING_TOOLS):
        return tool in READING_TOOLS
    if name == "Edit" or (rule.specifier is not None and name in EDITING_TOOLS):
        return tool in EDITING_TOOLS
    return _fits_tool_name(name, tool)


def _allows_tool(rule: PermissionRule, tool: str) -> bool:
    """Return whether a rule of `allow` covers a tool: the group only for `Read` and `Edit`."""
    name, tool = canonical(rule.tool), canonical(tool)
    group = {"Read": READING_TOOLS, "Edit": EDITING_TOOLS}.get(name, frozenset())
    return name == tool or tool in group or _fits_tool_name(name, tool)


def _fits_tool_name(name: str, tool: str) -> bool:
    if "*" in name:
        return fnmatchcase(tool, name.replace("[", "[[]"))
    return name.startswith("mcp__") and tool.startswith(f"{name}__")


def _host(url: object) -> str | None:
    """Return the host of a URL in lower case; None if URL parsers may disagree about it."""
    if not isinstance(url, str) or "\\" in url or any(char.isspace() for char in url.strip()):
        return None
    try:
        parts = urlsplit(url.strip())
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not _HOST.match(host) or "@" in parts.netloc:
        return None
    if ":" not in host and not _NUMERIC.search(host):
        return host
    try:
        address = ip_address(host)
    except ValueError:  # Another notation of an address.
        return None
    is_plain = str(address) in ("::", "::1") or not any(address in each for each in _EMBEDDING)
    return str(address) if is_plain else None


def _fits_domain(specifier: str, host: str) -> bool:
    domain = specifier.removeprefix("domain:").strip().lower()
    with suppress(ValueError):
        domain = str(ip_address(domain.strip("[]")))
    return fnmatchcase(host, domain.replace("[", "[[]").replace("?", "[?]"))


def _fits_name(specifier: str, name: str, kind: str, *, folded: bool) -> bool:
    if folded:
        specifier, name = specifier.casefold(), name.casefold()
    if kind == SEND_MESSAGE:  # Of an address with a colon: `:*` is no end of a command.
        return fnmatchcase(name, specifier.replace("[", "[[]").replace("?", "[?]"))
    return command_rules.command_pattern(specifier).fits(name)
