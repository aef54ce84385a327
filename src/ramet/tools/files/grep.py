"""Grep: find lines by a regular expression, with ripgrep if available, otherwise with Python in a separate process.

The process is separate because a pattern with endless backtracking can be stopped only from outside. Both variants
search the same files and return the same form.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Literal

from langchain_core.tools import ToolException
from pydantic import Field

from ramet.concurrency.pipes import Capture
from ramet.concurrency.processes import CommandResult, environment, run
from ramet.tools.arguments import Arguments, BuiltinTool, workspace_tool
from ramet.tools.context import ToolUseContext
from ramet.tools.files.glob import is_directory
from ramet.tools.files.paths import SKIPPED, ResolvedPath, current_context, directory, open_file, printable, resolve
from ramet.tools.glob_patterns import BadPattern, Pattern
from ramet.tools.permission_checks import hidden_files

LIMIT_S = 60.0
MAX_OUTPUT = 1024 * 1024  #: bytes of the search's output that are read
MAX_LINE = 500
MAX_PATTERN = 10_000
_LINE = re.compile(r"(\d+)([:-])(.*)", re.DOTALL)
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from ramet.tools.files.grep_worker import main; main(sys.argv[2])"
#: The file patterns of each `type`.
TYPES = {
    "c": "*.{c,h}",
    "cpp": "*.{cpp,cc,cxx,hpp,hh,h}",
    "css": "*.{css,scss}",
    "go": "*.go",
    "html": "*.{html,htm}",
    "java": "*.java",
    "js": "*.{js,jsx,mjs,cjs}",
    "json": "*.json",
    "log": "*.log",
    "md": "*.{md,markdown}",
    "php": "*.php",
    "py": "*.{py,pyi}",
    "rb": "*.rb",
    "rust": "*.rs",
    "sh": "*.{sh,bash}",
    "sql": "*.sql",
    "toml": "*.toml",
    "ts": "*.{ts,tsx,mts,cts}",
    "txt": "*.txt",
    "xml": "*.xml",
    "yaml": "*.{yaml,yml}",
}


class GrepArguments(Arguments):
    pattern: str = Field(
        min_length=1, max_length=MAX_PATTERN, description="A regular expression, searched line by line"
    )
    path: str | None = Field(None, description="The file or directory to search; the workspace root if left out")
    glob: str | None = Field(None, description="Only files whose names fit, such as *.py or src/**/*.ts")
    type: str | None = Field(None, description=f"Only files of a type: {', '.join(TYPES)}")
    output_mode: Literal["content", "files_with_matches", "count"] = Field(
        "files_with_matches", description="Matching lines, names of files, or how many lines match in each"
    )
    ignore_case: bool = Field(False, alias="-i", description="Ignore case")
    numbers: bool = Field(True, alias="-n", description="Show line numbers, with output_mode content")
    before: int = Field(0, alias="-B", ge=0, le=50, description="Lines to show before each match, with content")
    after: int = Field(0, alias="-A", ge=0, le=50, description="Lines to show after each match, with content")
    around: int = Field(0, alias="-C", ge=0, le=50, description="Lines to show before and after each match")
    head_limit: int = Field(250, ge=0, description="The most entries to show; 0 for as many as fit")
    offset: int = Field(0, ge=0, description="How many entries to skip first")


async def grep(arguments: GrepArguments) -> str:
    """Return matches as `path:line:text`, or names, or counts, in the order of paths, with a note if there are more."""
    context = current_context()
    if "\0" in arguments.pattern:
        raise ToolException("pattern: cannot hold a NUL character")
    resolved = resolve(context, arguments.path or ".")
    output = Capture(head=MAX_OUTPUT, stops=True)
    if is_directory(resolved):
        with directory(resolved) as fd:
            result = await _search(arguments, _descriptor_path(fd, resolved), None, output, context)
        prefix = "" if resolved.display_path == "." else f"{resolved.display_path}/"
    else:
        fd = open_file(resolved)
        try:
            result = await _search(arguments, "/", fd, output, context)
        finally:
            os.close(fd)
        prefix = ""
    single_name = resolved.display_path if prefix == "" and resolved.display_path != "." else None
    text = output.data().decode("utf-8", "surrogateescape")  # so that names are equal to those of Glob
    if result.code == 2 and "\0" not in text:
        text = _readable(text)
        raise ToolException(f"pattern: {text.strip()[:1_000] or 'the search failed'}")
    is_hidden = None if single_name else hidden_files(context, resolved.path)
    is_visible: Callable[[str], bool] = lambda path: is_hidden is None or not is_hidden(f"{resolved.path}/{path}")  # noqa: E731
    entries = _entries(arguments, text, prefix, single_name, is_visible)
    return _page(arguments, entries, result, context.max_result_chars - 500)


def _descriptor_path(fd: int, resolved: ResolvedPath) -> str:
    """Return the open directory as a path for a child process, so that it cannot be swapped for another."""
    name = f"/proc/self/fd/{fd}"
    return name if os.path.exists(name) else str(resolved.path)  # noqa: PTH110 - the cheapest check


async def _search(
    arguments: GrepArguments, cwd: str, stdin: int | None, output: Capture, context: ToolUseContext
) -> CommandResult:
    from_stdin = stdin is not None
    globs = [] if from_stdin else _globs(arguments)
    ripgrep = shutil.which("rg")
    argv = _rg(ripgrep, arguments, globs, from_stdin) if ripgrep else _python(arguments, globs, from_stdin)
    try:
        with context.track_process():
            result = await run(
                argv,
                clock=context.clock,
                timeout_s=LIMIT_S,
                cwd=cwd,
                env=environment(),
                stdin=b"" if stdin is None else stdin,
                stdout=output,
                forks=False,
            )
    except (OSError, UnicodeEncodeError) as error:
        raise ToolException(f"the search could not be started: {error}") from None
    # An interpreter that could not start also exits with 1; for ripgrep it means no match.
    if not ripgrep and result.code == 1:
        raise ToolException("the search failed, and gave no result")
    return result


def _globs(arguments: GrepArguments) -> list[str]:
    """Return the patterns that files must match, each from the top."""
    if arguments.type is not None and arguments.glob is not None:
        raise ToolException("give `glob` or `type`, not both")
    if arguments.type is not None and arguments.type not in TYPES:
        raise ToolException(f"type: {printable(arguments.type)} is not known; known: {', '.join(TYPES)}")
    text = arguments.glob if arguments.type is None else TYPES[arguments.type]
    if text is None:
        return []
    try:
        pattern = Pattern(text)
    except BadPattern as error:
        raise ToolException(f"glob: {error}") from None
    return [("!" if pattern.is_negated else "") + each for each in pattern.globs]


def _rg(program: str, arguments: GrepArguments, globs: list[str], from_stdin: bool) -> list[str]:
    argv = [program, "--no-config", "--no-messages", "--color=never", "--no-heading", "--with-filename", "--null"]
    argv += ["--hidden", "--no-ignore", "--sort=path", "--line-number", "--max-columns=4000", "--max-columns-preview"]
    argv += [f"--glob={each.replace('!', '!/', 1) if each[0] == '!' else '/' + each}" for each in globs]
    argv += [f"--glob=!{name}" for name in sorted(SKIPPED)]  # after the others, since the last match wins
    if arguments.ignore_case:
        argv.append("--ignore-case")
    if arguments.output_mode == "files_with_matches":
        argv.append("--files-with-matches")
    elif arguments.output_mode == "count":
        argv.append("--count")
    else:
        argv += [f"--before-context={arguments.before or arguments.around}"]
        argv += [f"--after-context={arguments.after or arguments.around}"]
    return [*argv, f"--regexp={arguments.pattern}", "--", "-" if from_stdin else "./"]


def _python(arguments: GrepArguments, globs: list[str], from_stdin: bool) -> list[str]:
    job = {
        "pattern": arguments.pattern,
        "ignore_case": arguments.ignore_case,
        "mode": arguments.output_mode,
        "before": arguments.before or arguments.around,
        "after": arguments.after or arguments.around,
        "globs": globs,
        "skipped": sorted(SKIPPED),
        "stdin": from_stdin,
    }
    source = str(pathlib.Path(__file__).parents[3])
    return [sys.executable, "-I", "-S", "-c", _BOOT, source, json.dumps(job)]


def _entries(
    arguments: GrepArguments, text: str, prefix: str, single_name: str | None, is_visible: Callable[[str], bool]
) -> Iterator[str]:
    """Yield the search's output as entries: each has its path before a NUL. `is_visible` excludes files."""
    if arguments.output_mode == "files_with_matches":
        for path in text.split("\0")[:-1]:
            path = path.lstrip("\n").removeprefix("./")
            if is_visible(path):
                yield single_name or prefix + printable(path, max_chars=4096)
        return
    for line in text.split("\n"):
        path, separator, rest = line.partition("\0")
        if not separator:
            if line == "--":
                yield line
            continue
        path = path.removeprefix("./")
        if not is_visible(path):
            continue
        name = single_name or prefix + printable(path, max_chars=4096)
        if arguments.output_mode == "count":
            yield f"{name}:{rest}"
        elif match := _LINE.match(rest):
            number, sign, content = match.groups()
            content = _readable(content).rstrip("\r")
            if len(content) > MAX_LINE:
                content = content[:MAX_LINE] + "…"
            yield f"{name}{sign}{number}{sign}{content}" if arguments.numbers else f"{name}{sign}{content}"


def _readable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _page(arguments: GrepArguments, entries: Iterator[str], result: CommandResult, remaining_chars: int) -> str:
    """Return the requested entries, as far as they fit, and a note."""
    lines: list[str] = []
    more = False
    for at, entry in enumerate(entries):
        if at < arguments.offset:
            continue
        remaining_chars -= len(entry) + 1
        if (arguments.head_limit and len(lines) >= arguments.head_limit) or (lines and remaining_chars < 0):
            more = True
            break
        lines.append(entry)
    if result.reason == "timeout":
        notes = f"… [the search was stopped after {LIMIT_S:g} s: not everything was searched]"
    elif more:
        notes = f"… [more matches; go on with offset={arguments.offset + len(lines)}, or narrow the search]"
    elif result.reason == "enough":
        notes = "… [more matches than this tool reads; narrow the search]"
    else:
        notes = "" if lines else "No matches." if not arguments.offset else "No more matches."
    return "\n".join([*lines, notes] if notes else lines)


def grep_tools() -> list[BuiltinTool]:
    return [
        workspace_tool(
            "Grep",
            "Search file contents by a regular expression, hidden and ignored files included. output_mode `content` "
            f"gives path:line:text. Skipped: {', '.join(sorted(SKIPPED))}, and binary files.",
            GrepArguments,
            grep,
            concurrency_safe=True,
            read_only=True,
            repeatable=True,
        )
    ]
