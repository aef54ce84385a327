"""The programs of installed packages, whose metadata are hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.mcp.package_command import PackageCommand, package_command
from ramet.core.mcp.server_entry import McpServer
from ramet.host.mcp.package_tree import program_of, site_packages, tree_hash


def command(*words: str) -> PackageCommand:
    found = package_command(McpServer(name="x", command=words[0], args=words[1:]))
    assert found is not None
    return found


@pytest.mark.parametrize(
    "programs",
    ["../../../bin/sh", {"x": "/bin/sh"}, {"x": "link"}, {"x": "."}, {"x": ["cli.js"]}, {"a": "cli.js", "b": "cli.js"}],
)
def test_a_program_of_npm_is_a_file_of_its_packages(tmp_path: Path, programs: Any) -> None:
    """A path or a link that leads out, and a choice that the command does not make, are refused."""
    package = tmp_path / "node_modules" / "x"
    package.mkdir(parents=True)
    (package / "link").symlink_to("/bin/sh")
    (package / "cli.js").write_text("#!/bin/sh\n")
    (package / "cli.js").chmod(0o755)
    (package / "package.json").write_text(json.dumps({"bin": "cli.js"}))
    assert program_of(command("npx", "x"), tmp_path).command[-1] == str(package / "cli.js")

    (package / "package.json").write_text(json.dumps({"bin": programs}))
    with pytest.raises(InvalidValue, match=r"one (with the|whose) program"):
        program_of(command("npx", "x"), tmp_path)


def test_the_first_line_of_a_program_names_no_file_of_the_host(tmp_path: Path) -> None:
    """The sandbox would see it: a private script, for example."""
    private = tmp_path / "private" / "deploy.sh"
    package = tmp_path / "tree" / "node_modules" / "x"
    for each in (private.parent, package):
        each.mkdir(parents=True)
    private.write_text("#!/bin/sh\nTOKEN=secret\n")
    (package / "package.json").write_text(json.dumps({"bin": "cli.js"}))
    (package / "cli.js").write_text(f"#!{private}\n")
    for each in (private, package / "cli.js"):
        each.chmod(0o755)
    with pytest.raises(InvalidValue, match="is started by node, or by a program that every sandbox sees"):
        program_of(command("npx", "x"), tmp_path / "tree")


@pytest.mark.parametrize("target", ["os:system('x')", "os;x:y", "x", ":x", "x:", "x:y\n\n[", "x y:z"])
def test_a_program_of_pypi_is_a_function_of_a_module(tmp_path: Path, target: str) -> None:
    """Text that is no name of a module and a function never becomes code."""
    metadata = site_packages(tmp_path) / "x-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "entry_points.txt").write_text("[console_scripts]\nx = a.b:c.d [extra]\n")
    assert "import a.b as module; sys.exit(module.c.d())" in program_of(command("uvx", "x"), tmp_path).command[-1]

    (metadata / "entry_points.txt").write_text(f"[console_scripts]\nx = {target}\n")
    with pytest.raises(InvalidValue, match="package: 'x' is not accepted"):
        program_of(command("uvx", "x"), tmp_path)


def test_each_change_of_a_file_changes_the_hash(tmp_path: Path) -> None:
    """Content, name, right to execute, links and folders count."""
    hashes = {tree_hash(tmp_path)}
    file = tmp_path / "a"
    file.write_text("x")
    hashes.add(tree_hash(tmp_path))
    file.write_text("y")
    hashes.add(tree_hash(tmp_path))
    file.chmod(0o755)
    hashes.add(tree_hash(tmp_path))
    file.rename(tmp_path / "b")
    hashes.add(tree_hash(tmp_path))
    file.symlink_to("b")
    hashes.add(tree_hash(tmp_path))
    (tmp_path / "c").mkdir()
    hashes.add(tree_hash(tmp_path))
    assert len(hashes) == 7
