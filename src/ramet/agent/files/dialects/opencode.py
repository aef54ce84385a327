"""Agent files of OpenCode: `.opencode/agents/*.md`, with a map of permissions.

OpenCode lets the last pattern that fits decide; ramet lets a denial decide, then a question. So each line that denies
or asks becomes a rule, whose exceptions are the later, weaker lines of the same tool.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, cast

import msgspec

from ramet.agent.definition import Scope
from ramet.agent.files import frontmatter
from ramet.agent.files.agent_file import AgentFile
from ramet.agent.files.dialects.fields import FileFields
from ramet.core.errors import Unknown
from ramet.core.policy.permissions import Effect, PermissionRule, Permissions
from ramet.core.tool_names import EDITING_TOOLS, READING_TOOLS
from ramet.models.effort import EFFORTS, Effort
from ramet.models.resolve import parse as parse_model
from ramet.tools.permissions.parsing import parse_rule
from ramet.tools.permissions.path_rules import cost

ACTIONS: Final = ("allow", "ask", "deny")
#: OpenCode's names of tools, with ramet's.
_TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "read": ("Read",),
    "edit": ("Edit", "Write"),
    "write": ("Write",),
    "patch": ("Edit",),
    "glob": ("Glob",),
    "grep": ("Grep",),
    "list": ("LS",),
    "bash": ("Bash",),
    "task": ("Agent",),
    "skill": ("Skill",),
    "webfetch": ("WebFetch",),
    "websearch": ("WebSearch",),
    "todowrite": ("TodoWrite",),
}
_PROVIDERS: Final = {
    "google": "google_genai",
    "google-vertex": "google_vertexai",
    "amazon-bedrock": "bedrock_converse",
    "azure": "azure_openai",
    "mistral": "mistralai",
}
_EVERY: Final = "*"
#: What `"*": "ask"` asks about. Reading is asked about by each tool that reads, editing by both tools that write.
_ASKED: Final = tuple(dict.fromkeys(name for names in _TOOLS.values() for name in names))
MAX_PATTERNS: Final = 500
MAX_COST: Final = 3_000  #: of all patterns of one file, as in settings files


class _Permission(NamedTuple):
    """A line of the map: what happens to calls of a tool that fit the pattern."""

    tool: str  #: OpenCode's name, or `*`
    pattern: str
    action: str

    def __str__(self) -> str:
        return f"{self.tool} {self.pattern!r}: {self.action}"


def parse(text: str, source: Path, scope: Scope) -> AgentFile:
    """Parse one file. Raises InvalidValue, with the file and the key."""
    front = frontmatter.parse(text, source=source)
    fields = FileFields(front.keys, source, "OpenCode", front.notes)
    description, name = fields.text("description", required=True), fields.text("name") or source.stem
    prompt = fields.text("prompt")
    if "{file:" in prompt:
        raise fields.refusal("prompt", prompt, "text; write it below the front matter")
    if fields.choice("mode", "primary", "subagent", "all") == "primary":
        fields.note("mode", "primary: other agents may start it, too")
    steps = [each for each in (fields.take("steps"), fields.take("maxSteps")) if each is not None]
    is_disabled = fields.flag("disable") | fields.flag("disabled")
    if is_disabled:
        fields.note("disable", "true: there is no agent of this file")
    permissions = [*_of_tools(fields), *_of_permission(fields)]
    translation = _translate(permissions, fields)
    file = fields.agent_file(
        scope,
        name=name,
        description=description,
        instructions=front.body or prompt,
        model=_model(fields),
        effort=_effort(fields),
        max_turns=steps[0] if steps else None,
        tools=translation.allowed,
        disallowed_tools=translation.denied,
        permissions=Permissions(rules=translation.rules),
    )
    return file._replace(is_disabled=is_disabled)


def _model(fields: FileFields) -> str | None:
    """Return the name of a model in ramet's form."""
    provider, slash, model = fields.text("model").partition("/")
    if not slash:
        return provider or None
    name = f"{_PROVIDERS.get(provider, provider)}:{model}"
    try:
        parse_model(name)
    except Unknown:
        fields.note("model", f"{provider}/{model}: ramet knows no provider of this name; the agent cannot start")
    return name


def _effort(fields: FileFields) -> Effort | None:
    """Return the effort, which OpenCode has as an option of the model, or as a variant of that name."""
    effort, variant = fields.choice("reasoningEffort", *EFFORTS), fields.text("variant")
    if not effort and variant in EFFORTS:
        effort = variant
    elif variant:
        fields.note("variant", f"{variant[:100]}: not honoured: it is for OpenCode")
    return cast("Effort", effort) if effort else None


def _of_tools(fields: FileFields) -> Iterator[_Permission]:
    """Yield the permissions of the older map of tools: true or false."""
    value = fields.take("tools")
    if value is None:
        return
    if not isinstance(value, dict) or not all(isinstance(each, bool) for each in value.values()):
        raise fields.refusal("tools", value, "a mapping from names of tools to true or false")
    for tool, is_on in value.items():
        yield _Permission(str(tool), _EVERY, "allow" if is_on else "deny")


def _of_permission(fields: FileFields) -> Iterator[_Permission]:
    value = fields.take("permission")
    if isinstance(value, str):
        value = {_EVERY: value}
    if value is None:
        return
    if not isinstance(value, dict):
        raise fields.refusal("permission", value, f"{', '.join(ACTIONS)}, or a mapping from names of tools to them")
    count = 0
    for tool, actions in value.items():
        by_pattern = actions if isinstance(actions, dict) else {_EVERY: actions}
        count += len(by_pattern)
        if count > MAX_PATTERNS:
            raise fields.refusal("permission", f"more than {MAX_PATTERNS} patterns", f"at most {MAX_PATTERNS} patterns")
        for pattern, action in by_pattern.items():
            if action not in ACTIONS or not isinstance(pattern, str):
                raise fields.refusal(
                    f"permission.{str(tool)[:100]}", action, f"{', '.join(ACTIONS)}, or patterns of them"
                )
            yield _Permission(str(tool), pattern, action)


class _Translation(NamedTuple):
    """A map of permissions in ramet's form."""

    denied: tuple[str, ...] = ()  #: tools that it does not have
    allowed: tuple[str, ...] | None = None  #: the only tools that it has; None: all others, too
    rules: tuple[PermissionRule, ...] = ()


def _translate(permissions: list[_Permission], fields: FileFields) -> _Translation:
    """Return the denied tools, the only allowed tools if every tool is denied first, and the rules."""
    allowed: list[str] | None = None
    denied: list[str] = []
    rules: list[PermissionRule] = []
    for number, each in enumerate(permissions):
        later = permissions[number + 1 :]
        if each.tool == _EVERY:
            if each.action == "deny":
                allowed = []
            elif each.action == "ask":
                lifted = {name for other in later if other.action == "allow" for name in _TOOLS.get(other.tool, ())}
                rules += (_rule(each, name, (), fields) for name in _ASKED if name not in lifted)
            continue
        names = _TOOLS.get(each.tool, ())
        if not names and each.action != "allow":
            fields.note("permission", f"{each}: not honoured: ramet has no tool of this kind")
        if allowed is not None and each.action != "deny":
            allowed += names
        if not names or each.action == "allow":
            continue
        weaker = [
            other.pattern
            for other in later
            if other.tool == each.tool and ACTIONS.index(other.action) < ACTIONS.index(each.action)
        ]
        if each.action == "deny" and each.pattern == _EVERY and not weaker:
            denied += names
        elif _EVERY not in weaker:
            rules.append(_rule(each, names[0], tuple(weaker), fields))
    work = sum(
        cost(pattern) if rule.tool in READING_TOOLS | EDITING_TOOLS else 1
        for rule in rules
        for pattern in (rule.specifier or _EVERY, *rule.exceptions)
    )
    if work > MAX_COST:
        raise fields.refusal("permission", f"{len(rules)} rules", "fewer patterns, and fewer with ** or {…}")
    return _Translation(
        tuple(dict.fromkeys(denied)),
        None if allowed is None else tuple(dict.fromkeys(allowed)),
        tuple(dict.fromkeys(rules)),
    )


def _rule(permission: _Permission, name: str, exceptions: tuple[str, ...], fields: FileFields) -> PermissionRule:
    """Return the rule of one line, without the calls that a later line of the tool speaks of more weakly."""
    effect = cast("Effect", permission.action)
    field = f"{fields.source}: permission.{permission.tool}"

    def parsed(pattern: str) -> PermissionRule:
        text = name if pattern == _EVERY else f"{name}({pattern})"
        return parse_rule(text, effect, source=str(fields.source), field=field, home=os.path.expanduser("~"))  # noqa: PTH111 - never raises

    for each in exceptions:
        parsed(each)
    return msgspec.structs.replace(parsed(permission.pattern), exceptions=exceptions)
