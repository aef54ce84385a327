"""Resolution of names inside a workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import ToolException

from ramet.tools.files.paths import MAX_NAME, directory, open_file, printable, resolve
from ramet.tools.glob_patterns import BadPattern, Pattern
from tests.support.context import make_context


@pytest.mark.parametrize("name", ["a/b.txt", "./a/b.txt", "a//b.txt", "a/./b.txt"])
def test_a_name_inside_is_found_in_every_spelling(tmp_path: Path, name: str) -> None:
    """Each spelling of one name leads to one place."""
    resolved_path = resolve(make_context(tmp_path), name)

    assert (resolved_path.path, resolved_path.parts, resolved_path.display_path) == (
        tmp_path.resolve() / "a/b.txt",
        ("a", "b.txt"),
        "a/b.txt",
    )


@pytest.mark.parametrize("name", ["..", "../a", "a/../../b", "a/..", "/etc/passwd", "/", "~/../x"])
def test_a_name_outside_is_refused(tmp_path: Path, name: str) -> None:
    """`..` and absolute names do not leave the workspace."""
    with pytest.raises(ToolException):
        resolve(make_context(tmp_path), name)


def test_a_sibling_with_a_similar_name_is_outside(tmp_path: Path) -> None:
    """`/work-secret` is not in `/work`."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work-secret").mkdir()

    with pytest.raises(ToolException, match="outside"):
        resolve(make_context(tmp_path / "work"), str(tmp_path / "work-secret/key"))


def test_a_link_is_followed_only_inside(tmp_path: Path) -> None:
    """The target of a link counts."""
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (root / "inner").symlink_to("real")
    (root / "outer").symlink_to(tmp_path / "outside")
    (root / "dangling").symlink_to(tmp_path / "outside/not-yet")
    context = make_context(root)

    assert resolve(context, "inner/x").parts == ("real", "x")
    for name in ("outer", "outer/x", "dangling"):
        with pytest.raises(ToolException, match="outside"):
            resolve(context, name, writing=True)


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    """A workspace behind a link works under both names."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    context = make_context(tmp_path / "link")

    assert (
        resolve(context, str(tmp_path / "link/a")).parts == resolve(context, str(tmp_path / "real/a")).parts == ("a",)
    )


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    """Two links at each other do not make the tool wait."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    with pytest.raises(ToolException):
        os.close(open_file(resolve(make_context(tmp_path), "a")))


def test_read_roots_may_be_read_and_not_written(tmp_path: Path) -> None:
    """A further root opens for reading only, and only under its absolute name."""
    (tmp_path / "work").mkdir()
    (tmp_path / "spilled").mkdir()
    context = make_context(tmp_path / "work", read_roots=(tmp_path / "spilled",))
    name = str(tmp_path / "spilled/result.txt")

    assert resolve(context, name).display_path == str((tmp_path / "spilled/result.txt").resolve())
    with pytest.raises(ToolException, match="outside"):
        resolve(context, name, writing=True)
    assert resolve(context, "result.txt").root == (tmp_path / "work").resolve()


@pytest.mark.parametrize("name", [".git/hooks/post-checkout", "sub/.git", ".GIT/config", ".ramet/journal.db"])
def test_trusted_files_cannot_be_written(tmp_path: Path, name: str) -> None:
    """A hook of git and the record of a run are readable only: writing there could run code."""
    context = make_context(tmp_path)

    resolve(context, name)
    with pytest.raises(ToolException, match="not written"):
        resolve(context, name, writing=True)


def test_impossible_names_get_a_short_error(tmp_path: Path) -> None:
    """A NUL and a megabyte are refused, and the error is no megabyte."""
    context = make_context(tmp_path)

    with pytest.raises(ToolException, match="NUL"):
        resolve(context, "a\0b")
    with pytest.raises(ToolException, match=str(MAX_NAME)) as refusal:
        resolve(context, "a" * 1_000_000)
    assert len(str(refusal.value)) < 1_000
    with pytest.raises(ToolException):
        os.close(open_file(resolve(context, "a" * 1_000)))


def test_a_name_is_shown_on_one_line() -> None:
    """A name with newlines, escapes or foreign bytes cannot forge lines or colours."""
    assert printable("a\nb") == "a\\nb"
    assert printable("\x1b[31m") == "\\x1b[31m"
    assert printable("caf\udce9") == "caf\\udce9"
    assert printable("größe 说明.txt") == "größe 说明.txt"


@given(st.text(alphabet="./~ab\n\0é", max_size=12))
def test_each_name_is_inside_or_refused(name: str) -> None:
    """No spelling leads out of the root."""
    root = Path("/usr").resolve()
    try:
        resolved_path = resolve(make_context(root), name)
    except ToolException:
        return
    assert resolved_path.path == root or root in resolved_path.path.parents


def test_directories_are_made_below_the_root_only(tmp_path: Path) -> None:
    """`make` makes missing directories; without it, a missing one is an error."""
    resolved_path = resolve(make_context(tmp_path), "a/b/c")
    with pytest.raises(ToolException), directory(resolved_path):
        raise AssertionError("it is not there")

    with directory(resolved_path, make=True) as fd:
        assert os.fstat(fd).st_ino == (tmp_path / "a/b/c").stat().st_ino


@pytest.mark.parametrize(
    ("pattern", "fits", "fits_not"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".hidden.py"], ["a.pyc", "a.py/b"]),
        ("./*.py", ["a.py"], ["x/a.py"]),
        ("src/*.py", ["src/a.py"], ["x/src/a.py", "src/x/a.py"]),
        ("src/**/*.py", ["src/a.py", "src/x/y/a.py"], ["a.py"]),
        ("**/test_*", ["test_a", "x/test_a"], ["x/test_a/b"]),
        ("src/**", ["src/a", "src/x/y"], ["src"]),
        ("**", ["a", "x/y"], []),
        ("*.{yml,yaml}", ["a.yml", "x/b.yaml"], ["a.yaml.bak"]),
        ("{a,b{c,d}}.x", ["a.x", "bc.x", "bd.x"], ["b.x"]),
        ("a{b", ["a{b"], ["ab"]),
        ("{}.x", ["{}.x"], [".x"]),
        ("[!a]b", ["cb"], ["ab"]),
        ("[^a]b", ["cb"], ["ab"]),
        ("?.md", ["a.md"], ["ab.md"]),
        ("!*.lock", ["a.py"], ["a.lock", "x/b.lock"]),
        ("logs/", ["logs", "x/logs"], ["logs/a"]),
        ("a/**/**/b", ["a/b", "a/x/b"], ["ab"]),
    ],
)
def test_patterns_match_as_documented(pattern: str, fits: list[str], fits_not: list[str]) -> None:
    """Each pattern has matching paths and others."""
    compiled = Pattern(pattern)

    assert [path for path in fits if not compiled.fits(path)] == []
    assert [path for path in fits_not if compiled.fits(path)] == []


@pytest.mark.parametrize("pattern", ["", " ", "../*", "a/../b", "x" * 1_001, "{a,b}" * 20, "a\0", "/"])
def test_invalid_patterns_are_refused(pattern: str) -> None:
    """Empty patterns, `..`, and patterns that stand for too much are invalid."""
    with pytest.raises(BadPattern):
        Pattern(pattern)


def test_a_pattern_of_many_stars_is_matched_quickly() -> None:
    """Stars cost a product, not a power: backtracking would take longer than the test run."""
    assert not Pattern("a*" * 200 + "b").fits("a" * 255)
    assert not Pattern("**/a/" * 100 + "b").fits("a/" * 400 + "c")
