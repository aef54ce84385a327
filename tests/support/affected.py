"""The fast tests that a change concerns: `python -m tests.support.affected [REVISION]` prints their files.

A test is concerned if it was changed, if it imports a changed module, or if it imports a module that imports one.
Without a revision, the change is the difference between the working tree and the last commit, or else the last commit.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAST = ("unit", "properties", "machines")
ALWAYS = "tests/architecture"


def main(words: list[str]) -> None:
    """Print the tests, one path a line."""
    changed = changed_files(words[0]) if words else changed_files("HEAD") or changed_files("HEAD~")
    sys.stdout.write("\n".join([ALWAYS, *concerned(changed)]) + "\n")


def changed_files(revision: str) -> list[str]:
    """Return the paths of Python files that differ from a revision, new ones included; deleted ones are left out."""
    listed = _git("diff", "--name-only", revision, "--", "*.py") + _git(
        "ls-files", "--others", "--exclude-standard", "--", "*.py"
    )
    return [path for path in listed if (ROOT / path).is_file()]


def concerned(changed: Iterable[str]) -> list[str]:
    """Return the test files that changed, or that import a changed module or one of its users."""
    names = {module_name(path) for path in changed}
    sources = [path for folder in ("src/ramet", "tests") for path in (ROOT / folder).rglob("*.py")]
    imports = {path: set(imported(path.read_text())) for path in sources}
    users = {module_name(str(path.relative_to(ROOT))) for path, found in imports.items() if found & names}
    tests = (path for name in FAST for path in sorted((ROOT / "tests" / name).rglob("test_*.py")))
    found = names | {name for name in users if not name.startswith("tests.unit")}
    return [
        str(each.relative_to(ROOT))
        for each in tests
        if module_name(str(each.relative_to(ROOT))) in names or imports[each] & found
    ]


def module_name(path: str) -> str:
    """Return the dotted name of a module by its path below the root of the project."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(source: str) -> Iterator[str]:
    """Yield the dotted names that a module may import: `from a import b` gives both `a` and `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _git(*words: str) -> list[str]:
    """Return the lines that git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


if __name__ == "__main__":
    main(sys.argv[1:])
