"""The project's descriptions of itself are true: its map, its commands, and its files on any machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ramet"
MAP = ROOT / "ARCHITECTURE.md"
TESTS = ROOT / "tests" / "README.md"


# --- ARCHITECTURE.md ------------------------------------------------------------------------------------------------


def missing(text: str, root: Path = ROOT) -> list[str]:
    """Return the names in a map's `code spans` and in the trees of its fenced blocks that do not exist.

    A span is looked up when it has the form of a path (`agent/loop.py`, `docs/design/`) or of a module or a name in one
    (`ramet.agent.loop`, `core.budget.Budget`). Run paths (`main/searcher/2`) and dot folders of users are not. In a
    fenced tree, `core/  ids · policy (a table)` names a package and its modules.
    """
    fenced = "\n".join(re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S))
    prose = re.sub(r"^```[^\n]*\n.*?^```", "", text, flags=re.M | re.S)
    wrong = [span for span in re.findall(r"`([^`\n]+)`", prose) if not exists(span.removesuffix("()"), root)]
    for folder, items in re.findall(r"^[ \t]*([\w/.-]+)/(?:[ \t]+(\S.*))?$", fenced, re.M):
        if not exists(f"{folder}/", root):
            wrong.append(f"{folder}/")
        elif " · " in items:
            names = [item.split()[0] for item in re.sub(r"\([^)]*\)", "", items).split(" · ") if item.split()]
            wrong += [f"{folder}/{name}" for name in names if not exists(f"{folder}/{name}", root)]
    return wrong


def exists(span: str, root: Path) -> bool:
    """Return whether a span names something that exists, or has not the form of a path or module."""
    package = root / "src" / "ramet"
    if re.fullmatch(r"[\w.-]+(/[\w.-]*)+|[\w-]+\.(py|md|toml|txt)", span) and not span.startswith((".", "main/")):
        named = [base / span for base in (root, root / "src", package)]
        return any(path.exists() or path.with_suffix(".py").exists() for path in named)
    if re.fullmatch(r"\w+(\.\w+)+", span):
        parts = span.removeprefix("ramet.").split(".")
        if not span.startswith("ramet.") and not (package / parts[0]).is_dir():
            return True  # `asyncio.timeout`, `Session.submit_message`: not ours to look up
        return has(package, parts)
    return True


def has(folder: Path, parts: list[str]) -> bool:
    """Return whether `parts` lead from a package to a module, and on to a class, function or attribute in it."""
    if not parts:
        return True
    if (folder / parts[0]).is_dir():
        return has(folder / parts[0], parts[1:])
    module, init = folder / f"{parts[0]}.py", folder / "__init__.py"
    if module.exists():
        return defines(ast.parse(module.read_text()).body, parts[1:])
    return init.exists() and defines(ast.parse(init.read_text()).body, parts)


def defines(body: list[ast.stmt], names: list[str]) -> bool:
    if not names:
        return True
    for node in body:
        match node:
            case ast.ClassDef(name=name) if name == names[0]:
                return defines(node.body, names[1:])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name == names[0]:
                return len(names) == 1
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if name == names[0]:
                return True
            case ast.If(body=inner) if defines(inner, names):  # TYPE_CHECKING
                return True
            case ast.ImportFrom(names=aliases) if any((a.asname or a.name) == names[0] for a in aliases):
                return True
    return False


def test_the_map_names_only_what_exists() -> None:
    """Each file and module in ARCHITECTURE.md exists."""
    assert missing(MAP.read_text()) == []


def test_the_map_leaves_no_package_out() -> None:
    """Each package of ramet is on the map."""
    text = MAP.read_text()
    packages = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]

    assert [name for name in packages if not re.search(rf"\b{name}\b", text)] == []


def test_the_map_stays_two_pages() -> None:
    """A newcomer reads the map in one sitting."""
    assert len(MAP.read_text().splitlines()) <= 120


def unnamed_folders(text: str, folders: list[str]) -> list[str]:
    """Return the folders of tests that a text does not name."""
    return [folder for folder in folders if f"`tests/{folder}" not in text]


def test_the_map_of_tests_lists_each_promise_and_folder() -> None:
    """The map has a row for each of the fifteen promises, names every folder, and names only what exists."""
    text = TESTS.read_text()
    parts = [path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith(("_", "."))]
    shared = {"agents", "kits", "programs"}  # of several trips
    trips = [
        path.name for path in (ROOT / "tests" / "trips").iterdir() if path.is_dir() and not path.name.startswith("_")
    ]

    assert missing(text) == []
    assert re.findall(r"^\| (\d+)\. ", text, re.M) == [str(number) for number in range(1, 16)]
    assert unnamed_folders(text, parts + [f"trips/{name}" for name in trips if name not in shared]) == []
    assert unnamed_folders("`tests/unit`", ["unit", "moon"]) == ["moon"]


def test_a_wrong_map_is_noticed(tmp_path: Path) -> None:
    """Missing modules, files and functions are found, and other code spans are left alone."""
    loop = tmp_path / "src" / "ramet" / "agent" / "loop.py"
    loop.parent.mkdir(parents=True)
    loop.write_text("class Loop:\n    def turn(self): ...\n")
    right = (
        "`agent/loop.py` `ramet.agent.loop` `agent.loop.Loop.turn()` `asyncio.timeout` `main/searcher/2` `make demo`"
    )
    wrong = "`agent/lop.py` `ramet.agent.lop` `agent.loop.Lop` `store/memory.py`"
    tree = "```\nagent/   loop (the loop) · hooks\nstore/   memory\n```\n"

    assert missing(f"{right}\n{tree}{wrong}\n", tmp_path) == [
        "agent/lop.py", "ramet.agent.lop", "agent.loop.Lop", "store/memory.py", "agent/hooks", "store/",
    ]  # fmt: skip


# --- the same on any machine ----------------------------------------------------------------------------------------


def text_files() -> dict[Path, str]:
    """Return each text file of the project that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout: what belongs to the project cannot be told from what lies about")
    found: dict[Path, str] = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            try:
                found[Path(name)] = path.read_text()
            except UnicodeDecodeError:
                continue
    return found


INDEX = re.compile(
    r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|--(extra-)?index-url|--find[-]links|index-url *=", re.I
)
DOWNLOAD = re.compile(r"\w+://\S+[.](whl|zip|tgz|tar[.]\w+)\b")
PINS = re.compile(r"(constraints|requirements).*[.]txt|.*[.]lock|package-lock[.]json")
SOMEONES_HOME = re.compile(r"/(home|Users)/[a-z][\w-]*/")


def test_no_file_names_a_package_index() -> None:
    """Package indexes are the user's choice: no file names one, and no pin holds an address."""
    found = [
        f"{path}: {text[match.start() : match.end() + 40].splitlines()[0]}"
        for path, text in text_files().items()
        for pattern in ([INDEX, DOWNLOAD, re.compile("://")] if PINS.fullmatch(path.name) else [INDEX, DOWNLOAD])
        for match in pattern.finditer(text)
    ]

    assert found == []


def test_no_file_holds_a_path_of_one_machine() -> None:
    """Files name neither this checkout's folder nor a user's home, so that they are true on every machine."""
    here = re.compile(rf"(?<![\w.-]){re.escape(str(ROOT))}(?![\w.-])" if len(ROOT.parts) > 2 else r"(?!)")

    assert [
        f"{path}: {match.group()}"
        for path, text in text_files().items()
        for pattern in (here, SOMEONES_HOME)
        for match in pattern.finditer(text)
    ] == []


# --- commands -------------------------------------------------------------------------------------------------------


def test_ci_runs_only_commands_of_the_readme() -> None:
    """Each command of `.ci/run` is one that README.md tells a reader to run."""
    script = (ROOT / ".ci" / "run").read_text()
    commands = [line for line in script.splitlines() if line and not line.startswith(("#", "set ", "cd ", "PS4="))]
    readme = (ROOT / "README.md").read_text()

    assert commands
    assert [command for command in commands if command not in readme] == []
