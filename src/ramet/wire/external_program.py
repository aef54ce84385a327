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


class ProgramStart(Struct, frozen=True, kw_only=True):
    """A program, ready to start, and the prompt of its turn.

    In `command`, `env` and `files`, `${anthropic_url}`, `${openai_url}`, `${google_url}` and `${key}` stand for the
    address and the key of the sandbox's endpoint for models, `${prompt}` for the prompt, `${home}` for its home.
    """

    command: tuple[str, ...]
    protocol: Protocol
    prompt: str = ""
    resumes: bool = False  #: an earlier process was cut off in this turn
    env: dict[str, str] = {}  #: besides the variables of the sandbox
    files: dict[str, str] = {}  #: texts of files, by path below its home
    cwd: str = ""  #: below the workspace
    permission_mode: PermissionMode = "ask"
    tree_tools: bool = False  #: it may start agents itself, by an MCP server
