"""The description of a program of another maker, as the host sends it to the sandbox in which the program runs."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

#: How a program is spoken to: the Agent Client Protocol, lines of JSON on its output, or text on its output.
Protocol = Literal["acp", "stream-json", "text"]
PROTOCOLS: Final[tuple[Protocol, ...]] = ("acp", "stream-json", "text")
#: Who decides about calls that a program asks permission for: the run's approvers, or its sandbox alone.
PermissionMode = Literal["ask", "allow"]
PERMISSION_MODES: Final[tuple[PermissionMode, ...]] = ("ask", "allow")
#: The folder of the workspace that is a program's home: its configuration and its sessions, no files of its work.
HOME_FOLDER: Final = ".home"
#: The name of the MCP server by which a program starts agents itself: programs put it before the names of the tools.
TREE_SERVER: Final = "ramet"


class ProgramStart(Struct, frozen=True, kw_only=True):
    """A program, ready to start, and the prompt of its turn.

    In `command`, `env` and `files`, `${anthropic_url}`, `${openai_url}`, `${google_url}` and `${key}` stand for the
    address and the key of the sandbox's endpoint for models, `${mcp_url}` for the tools of the tree, if it has them,
    and `${home}` for its home; in `command`, `${prompt}` stands for the prompt of a program that does not speak ACP.
    """

    command: tuple[str, ...]
    protocol: Protocol
    prompt: str = ""
    resumes: bool = False  #: an earlier process was cut off in this turn
    env: dict[str, str] = {}  #: besides the variables of the sandbox
    files: dict[str, str] = {}  #: texts of files, by path below its home
    cwd: str = ""  #: below the workspace
    permission_mode: PermissionMode = "ask"
    tree_tools: bool = False  #: it gets the MCP server; over ACP with its session, else it reads `${mcp_url}`
