"""The tools of a workspace: Read, Write, Edit, Glob, Grep, Bash, rooted in the directory of the calling run."""

from __future__ import annotations

from langchain_core.tools import BaseTool

from ramet.tools.files.files import file_tools
from ramet.tools.files.glob import find_tools
from ramet.tools.files.grep import grep_tools
from ramet.tools.shell import shell_tools


def workspace_tools() -> list[BaseTool]:
    """Return all of them, stateless: the directory, and the files that a run has read, are in each call's context."""
    return [*file_tools(), *find_tools(), *grep_tools(), *shell_tools()]
