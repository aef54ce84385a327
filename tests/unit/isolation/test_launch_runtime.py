"""Tests of the runtime: the host folders that Python needs in a sandbox, and project files that stay hidden."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from ramet.isolation import python_runtime


def test_the_runtime_contains_interpreter_modules_and_ramet() -> None:
    runtime = python_runtime.find()
    for needed in (sys.executable, json_module(), python_runtime.__file__):
        real = str(Path(needed).resolve())
        assert any(real.startswith(f"{folder}/") or real.startswith("/usr/") for folder in runtime.folders), needed
    assert not any(one != other and one.startswith(f"{other}/") for one in runtime.folders for other in runtime.folders)


def json_module() -> str:
    import json

    return json.__file__


def test_a_linked_project_contributes_only_packages_and_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link of `pip install -e` may lead to a project with its keys and its history."""
    packages = tmp_path / "site-packages"
    project = tmp_path / "project"
    for folder in (packages, project / "mine", project / ".git", project / "data"):
        folder.mkdir(parents=True)
    for file in ("mine/__init__.py", "single.py", ".env", ".git/config", "data/table.csv", "pyproject.toml"):
        (project / file).touch()
    (packages / "linked.pth").write_text(f"# a comment\nimport os\n{project}\n/no/such/folder\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])

    folders = python_runtime.find().folders

    assert {folder for folder in folders if folder.startswith(str(project))} == {
        str(project / "mine"),
        str(project / "single.py"),
    }
    assert str(packages) in folders


def test_packages_that_setuptools_links_by_a_table_are_included(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    finder = types.ModuleType("__editable___mine_finder")
    finder.MAPPING = {"mine": str(tmp_path / "mine")}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, finder.__name__, finder)

    assert str(tmp_path / "mine") in python_runtime.find().folders


def test_a_site_folder_that_an_isolated_interpreter_skips_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own folder of packages is an example."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    assert str(packages) in python_runtime.find().path


def test_the_folder_of_the_running_script_is_not_included(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert not any(folder.startswith(str(tmp_path)) for folder in python_runtime.find().folders)


def test_a_linked_interpreter_includes_the_link_and_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "python-3.1"
    (real / "bin").mkdir(parents=True)
    (real / "bin" / "python").touch()
    (tmp_path / "python-3").symlink_to("python-3.1")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python-3" / "bin" / "python"))
    assert {str(real), str(tmp_path / "python-3")} <= set(python_runtime.find().folders)
