"""The Memory tool: notes that an agent keeps between runs, in one folder and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ConfigDict, Field

from ramet.core.errors import InvalidValue, Unknown
from ramet.tools.memory.memory_folder import VIRTUAL_ROOT, MemoryFolder, name_parts

_DESCRIPTION = """Keep notes for your later runs, in /memories. MEMORY.md is shown to you at the start of each: keep it
short, and let it name the other files.

view lists the files, or shows one with line numbers; create writes a whole file, replacing what was there; str_replace
replaces a text that occurs exactly once; insert puts text after a line (0: at the beginning); delete removes a file.
Write what will be of use next time: how things are done here, what was decided, what turned out wrong. Never write
secrets. Nobody else's folder can be reached."""


class _MemoryArgs(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: Literal["view", "create", "str_replace", "insert", "delete"]
    path: str = Field(default=VIRTUAL_ROOT, description="/memories, or a file such as /memories/MEMORY.md.")
    file_text: str | None = Field(default=None, description="create: the whole text.")
    old_str: str | None = Field(default=None, description="str_replace: the text to replace, occurring once.")
    new_str: str | None = Field(default=None, description="str_replace: what takes its place; left out, nothing does.")
    insert_line: int | None = Field(default=None, ge=0, description="insert: the line after which to insert.")
    insert_text: str | None = Field(default=None, description="insert: the lines to insert.")
    view_range: list[int] | None = Field(
        default=None, min_length=2, max_length=2, description="view: first and last line; -1 is the end."
    )


class MemoryTool(BaseTool):
    """A tool for one run's memory; the only tool that may leave the workspace, for this folder only."""

    name: str = "Memory"
    description: str = _DESCRIPTION
    args_schema: Any = _MemoryArgs
    metadata: dict[str, Any] | None = {"concurrency_safe": False, "children": False}  # noqa: RUF012 - pydantic copies it
    folder: Any  #: MemoryFolder; pydantic need not know it

    def _run(self, **arguments: Any) -> str:
        args = _MemoryArgs(**arguments)
        return _COMMANDS[args.command](self.folder, args)


def memory_tool(directory: Path | MemoryFolder) -> MemoryTool:
    """Return the Memory tool for one folder. Pass a MemoryFolder with its root if others may write above the folder."""
    return MemoryTool(folder=MemoryFolder(directory) if isinstance(directory, Path) else directory)


def _view(folder: MemoryFolder, args: _MemoryArgs) -> str:
    path, view_range = args.path, args.view_range
    relative = path.strip().removeprefix(VIRTUAL_ROOT).strip("/")
    prefix = "" if relative in ("", ".") else "/".join(name_parts(path)) + "/"
    notes = [note for note in folder.notes() if note.name.startswith(prefix)]
    if notes or not prefix:
        listing = "".join(f"\n{note.size:>8} {VIRTUAL_ROOT}/{note.name}" for note in notes)
        return f"Files, with their bytes:{listing}" if notes else "The memory is empty."
    lines = folder.read(path).split("\n")
    first, last = view_range or (1, -1)
    last = len(lines) if last == -1 else min(last, len(lines))
    if not 1 <= first <= last:
        raise InvalidValue("view_range", view_range, f"two lines of 1 to {len(lines)}, or -1 for the last")
    return "\n".join(f"{number:>6}\t{lines[number - 1]}" for number in range(first, last + 1))


def _create(folder: MemoryFolder, args: _MemoryArgs) -> str:
    is_new = folder.write(args.path, _require_value("file_text", args.file_text))
    return f"{'Created' if is_new else 'Replaced'} {args.path}."


def _str_replace(folder: MemoryFolder, args: _MemoryArgs) -> str:
    old, new = _require_value("old_str", args.old_str), args.new_str or ""
    if not old:
        raise InvalidValue("old_str", old, "a text that occurs once in the file")

    def replace(text: str) -> str:
        count = text.count(old)
        if count == 0:
            raise Unknown("text to replace", old)
        if count > 1:
            raise InvalidValue("old_str", old, f"a text that occurs once; this one occurs {count} times")
        return text.replace(old, new)

    folder.edit(args.path, replace)
    return f"Edited {args.path}."


def _insert(folder: MemoryFolder, args: _MemoryArgs) -> str:
    line, added = _require_value("insert_line", args.insert_line), _require_value("insert_text", args.insert_text)

    def insert(text: str) -> str:
        lines = text.split("\n")
        if line > len(lines):
            raise InvalidValue("insert_line", line, f"0 to {len(lines)}")
        return "\n".join([*lines[:line], *added.removesuffix("\n").split("\n"), *lines[line:]])

    folder.edit(args.path, insert)
    return f"Edited {args.path}."


def _delete(folder: MemoryFolder, args: _MemoryArgs) -> str:
    folder.delete(args.path)
    return f"Deleted {args.path}."


def _require_value(name: str, value: Any) -> Any:
    if value is None:
        raise InvalidValue(name, value, "a value: this command needs it")
    return value


_COMMANDS: Mapping[str, Callable[[MemoryFolder, _MemoryArgs], str]] = {
    "view": _view,
    "create": _create,
    "str_replace": _str_replace,
    "insert": _insert,
    "delete": _delete,
}
