"""Imports point down only, and the check of them is seen to fail."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ramet"

TRESPASSES = {
    # importer → what it must not import
    "core": ["asyncio", "os", "pathlib", "socket", "random", "time", "secrets", "ramet.concurrency"],
    "concurrency": ["ramet.wire", "ramet.tools"],
    "wire": ["ramet.concurrency"],
    "tools": ["ramet.models", "ramet.agent"],
    "models": ["ramet.tools"],
    "agent": ["ramet.isolation", "ramet.store", "ramet.spawn"],
    "isolation": ["ramet.agent", "ramet.store"],
    "store": ["ramet.agent", "ramet.isolation"],
    "spawn": ["ramet.guest", "ramet.host"],
    "guest": ["ramet.spawn"],
    "host": ["ramet.services", "ramet.cli"],
    "services": ["ramet.web"],
    "web": ["ramet.cli"],
    "cli": ["ramet.examples"],
    "examples": ["ramet.cli"],
}


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    """Run the project's import contracts over the `ramet` in `source`."""
    return subprocess.run(
        [
            Path(sys.executable).with_name("lint-imports"),
            "--no-logo",
            "--no-cache",
            "--config",
            ROOT / "pyproject.toml",
        ],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def trespassed(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Report on a copy of the source in which each package imports forbidden modules."""
    source = tmp_path_factory.mktemp("trespassed")
    for package in {*TRESPASSES, "sixth_toe"}:  # those not written yet, too, and one that has no layer
        folder = source / "ramet" / package
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    shutil.copytree(PACKAGE, source / "ramet", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for package, imported in TRESPASSES.items():
        lines = [f"import {module}\n" for module in imported]
        (source / "ramet" / package / "trespasser.py").write_text("".join(lines))
    (source / "ramet" / "core" / "one.py").write_text("from ramet.core import other\n")
    (source / "ramet" / "core" / "other.py").write_text("from ramet.core import one\n")
    return lint_imports(source)


def test_the_source_keeps_its_import_contracts() -> None:
    """No module of ramet imports upward, sideways, or in a circle; core decides without the world."""
    verdict = lint_imports(PACKAGE.parent)

    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


@pytest.mark.parametrize(
    ("package", "imported"), [(package, module) for package, modules in TRESPASSES.items() for module in modules]
)
def test_a_forbidden_import_is_named(trespassed: subprocess.CompletedProcess[str], package: str, imported: str) -> None:
    """A forbidden import fails the check, which names both modules."""
    assert trespassed.returncode == 1, trespassed.stdout + trespassed.stderr
    assert f"ramet.{package}.trespasser -> {imported} (l." in trespassed.stdout, trespassed.stdout


def test_an_import_cycle_is_named(trespassed: subprocess.CompletedProcess[str]) -> None:
    """Two modules of a package that import each other fail the check."""
    assert "No two modules of a package import each other, however long the way round BROKEN" in trespassed.stdout
    assert ".other -> .one" in trespassed.stdout or ".one -> .other" in trespassed.stdout, trespassed.stdout


def test_a_package_without_a_layer_is_named(trespassed: subprocess.CompletedProcess[str]) -> None:
    """A new package without a layer fails the check."""
    assert "sixth_toe" in trespassed.stdout


def sources(under: Path) -> list[Path]:
    return sorted(under.rglob("*.py"))


def imports(module: Path) -> list[tuple[int, str]]:
    """Return line and full name of each import anywhere in a module."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def lines_for_type_checkers(module: Path) -> set[int]:
    """Return the lines of `if TYPE_CHECKING:` blocks, which no interpreter runs."""
    return {
        line
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for each in node.body
        for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }


@pytest.mark.parametrize("package", ["core", "wire"])
def test_the_lowest_layers_import_only_stdlib_and_msgspec(package: str) -> None:
    """A pod that starts cold loads nothing else to read a frame or take a decision.

    Imports for type checkers do not count.
    """
    allowed = {*sys.stdlib_module_names, "msgspec", "ramet"}

    strangers = [
        f"{module.relative_to(ROOT)}:{line}: {name}"
        for module in sources(PACKAGE / package)
        for line, name in imports(module)
        if name.split(".")[0] not in allowed and line not in lines_for_type_checkers(module)
    ]

    assert strangers == []


def test_no_module_imports_the_facade() -> None:
    """Modules import a name from the module that holds it: `from ramet import …` would hide a dependency.

    The examples are above every layer: no module imports them, and they show what users write.
    """
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir()}

    facade = [
        f"{module.relative_to(ROOT)}:{line}: {name}"
        for module in sources(PACKAGE)
        if not module.is_relative_to(PACKAGE / "examples")
        for line, name in imports(module)
        if name == "ramet" or (name.startswith("ramet.") and name.split(".")[1] not in packages)
    ]

    assert facade == []


def is_plain(node: ast.stmt) -> bool:
    """Return whether a statement of an `__init__` only describes: it runs nothing and loads nothing."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):  # a docstring
            return True
        case ast.ImportFrom(module="__future__" | "typing" | "ramet.core.lazy_exports"):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
            return all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in node.body)
        case ast.Assign(targets=[ast.Tuple()], value=ast.Call(func=ast.Name(id="lazy_exports"), args=[name, exports])):
            return isinstance(name, ast.Name) and is_literal(exports)
        case (
            ast.Assign(targets=[ast.Name()], value=value) | ast.AnnAssign(target=ast.Name(), value=ast.expr() as value)
        ):
            return is_literal(value)
        case _:
            return False


def is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "init", [pytest.param(p, id=str(p.relative_to(PACKAGE))) for p in PACKAGE.rglob("__init__.py")]
)
def test_an_init_module_does_nothing(init: Path) -> None:
    """An `__init__` holds a docstring, TYPE_CHECKING imports and lazy exports: importing it does nothing."""
    assert [ast.unparse(node)[:120] for node in ast.parse(init.read_text()).body if not is_plain(node)] == []


HEAVY = [
    "asyncio",
    "jsonschema",
    "langchain_core",
    "logging",
    "msgspec",
    "pydantic",
    "rich",
    "socket",
    "sqlite3",
    "yaml",
]


def test_import_ramet_loads_no_heavy_package() -> None:
    """`import ramet` loads no heavy package before its first use, since every user pays for it; nor `ramet.testing`."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, ramet, ramet.testing; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert set(HEAVY) & set(loaded.stdout.split()) == set()


def test_sessions_and_guests_load_no_client_of_mcp() -> None:
    """The package `mcp` is loaded in the host once an agent has a server, and in no process of an agent."""
    program = "import sys, ramet, ramet.guest.serve; ramet.Session, ramet.AgentRuntime; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert "ramet.host.mcp.mcp_client" in loaded
    assert {"mcp", "mcp_types"} & set(loaded) == set()


def test_sandboxes_of_models_load_no_engine() -> None:
    """Agents in sandboxes run their loop only: the process that they are forked from loads nothing of the host."""
    program = "import sys; from ramet.isolation.zygote.main import load; load('llm'); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert {"ramet.agent.definition", "ramet.agent.loop", "ramet.guest.serve"} <= set(loaded)
    assert [each for each in loaded if each.startswith(("ramet.host", "ramet.spawn", "ramet.services"))] == []
