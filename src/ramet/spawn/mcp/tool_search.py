"""The search of a model for tools of its MCP servers: with many of them, each request would be full of definitions.

The names and descriptions that are searched are those of the servers, which may lie. A tool that is found is checked
like any other (`ramet.spawn.mcp.tool_definitions`) before a model sees it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from pydantic import Field

from ramet.core.mcp.server_entry import McpServer
from ramet.core.tool_names import TOOL_SEARCH
from ramet.spawn.mcp.tool_definitions import ServerTool
from ramet.tools.arguments import Arguments
from ramet.tools.mcp.connection_port import ListedTool

#: Above one of these, the tools of an agent's servers are found first, unless its definition says otherwise.
MAX_DIRECT_TOOLS, MAX_DIRECT_BYTES = 40, 64 * 1024
MAX_QUERY: Final = 1_000
MAX_RESULTS, DEFAULT_RESULTS = 20, 5
_SELECT: Final = "select:"
_MAX_WORDS: Final = 16
_MAX_NAMES: Final = 6_000  #: characters of the names in the description of the search
#: What is searched of a tool: characters of its description and of its parameters' names, and the number of these.
_MAX_TEXT, _MAX_PARAMETERS = 2_000, 50
#: What a word of a query is worth: as a part of a name, inside a name, and in a description or a parameter's name.
_PART, _INSIDE, _TEXT = 10, 5, 1
_SEPARATORS: Final = re.compile(r"[^a-z0-9]+")
_DESCRIPTION: Final = """Find tools of MCP servers, which you can call from then on. Until a tool is found you know its
name only, and cannot call it. Query: 'select:NAME,NAME' for tools by their exact names; words to search for in names
and descriptions, best matches first; '+word' for a word that the name must have. The answer has the definitions of the
tools that were found. Tools ({count}): {names}"""
_PARAMETERS: Final = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "'select:NAME,NAME', or words."},
        "max_results": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_RESULTS,
            "default": DEFAULT_RESULTS,
            "description": "The most tools to find.",
        },
    },
    "required": ["query"],
    "additionalProperties": False,
    "description": "",
}


class SearchArguments(Arguments):
    """The arguments of the search."""

    query: str = Field(min_length=1, max_length=MAX_QUERY)
    max_results: int = Field(default=DEFAULT_RESULTS, ge=1, le=MAX_RESULTS)


class OfferedTool(NamedTuple):
    """A tool that a server lists and that the agent may use."""

    name: str  #: by which a model calls it
    server: McpServer
    listed: ListedTool


def is_deferred(setting: object, offered: Sequence[OfferedTool]) -> bool:
    """Return whether a model has to find these tools first, by the setting of its agent: True, False or "auto"."""
    if setting != "auto":
        return bool(offered) and setting is True
    if len(offered) > MAX_DIRECT_TOOLS:
        return True
    return sum(len(msgspec.json.encode(each.listed)) for each in offered) > MAX_DIRECT_BYTES


class ToolCatalogue:
    """The tools that a model can find."""

    def __init__(self, offered: Sequence[OfferedTool]) -> None:
        self._tools = {each.name: each for each in offered}
        self._texts = [_SearchedText.of(each) for each in offered]

    def search_tool(self) -> ServerTool:
        """Return the definition of the search."""
        description = _DESCRIPTION.format(count=len(self._tools), names=self.names())
        metadata = {"read_only": True}
        return ServerTool(
            name=TOOL_SEARCH, description=description, args_schema=_PARAMETERS, timeout_s=60, metadata=metadata
        )

    def names(self) -> str:
        """Return the names of the tools, as far as they are shown."""
        shown: list[str] = []
        size = 0
        for name in self._tools:
            size += len(name) + 2
            if size > _MAX_NAMES:
                return f"{', '.join(shown)} and {len(self._tools) - len(shown)} more"
            shown.append(name)
        return ", ".join(shown)

    def select(self, names: Sequence[str]) -> list[OfferedTool]:
        """Return the tools of these names that there are."""
        return [self._tools[each] for each in dict.fromkeys(names) if each in self._tools]

    def find(self, arguments: SearchArguments) -> list[OfferedTool]:
        """Return the tools that fit a query best, the best first."""
        query = arguments.query.strip()
        if query.startswith(_SELECT):
            names = [each.strip() for each in query.removeprefix(_SELECT).split(",")]
            return self.select(names)[: arguments.max_results]
        words = query.lower().split()[:_MAX_WORDS]
        scores = [(each.score(words), each.name) for each in self._texts]
        ranked = sorted((each for each in scores if each[0] > 0), key=lambda each: -each[0])
        return [self._tools[name] for _, name in ranked[: arguments.max_results]]


class _SearchedText(NamedTuple):
    """The text of a tool that is searched, in lower case."""

    name: str  #: as it is called
    folded_name: str
    parts: frozenset[str]  #: of the name
    text: str  #: its description, and names of parameters

    @classmethod
    def of(cls, tool: OfferedTool) -> _SearchedText:
        properties = tool.listed.schema.get("properties")
        parameters = list(properties)[:_MAX_PARAMETERS] if isinstance(properties, Mapping) else []
        folded = tool.name.lower()
        texts = (tool.listed.description, *map(str, parameters))
        text = " ".join(each[:_MAX_TEXT] for each in texts)[:_MAX_TEXT].lower()
        return cls(tool.name, folded, frozenset(_SEPARATORS.split(folded)), text)

    def score(self, words: Sequence[str]) -> int:
        """Return how well the tool fits words: 0 if a required one is not in its name."""
        total = 0
        for each in words:
            word = each.lstrip("+")
            if not word:
                continue
            if word == self.folded_name or word in self.parts:
                total += _PART
            elif word in self.folded_name:
                total += _INSIDE
            elif each.startswith("+"):
                return 0
            elif word in self.text:
                total += _TEXT
        return total
