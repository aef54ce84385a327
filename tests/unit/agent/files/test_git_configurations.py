"""Git configurations: trust shows every entry that git reads, or refuses the file."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.git_programs import git_programs
from ramet.agent.files.trust import find_runnables

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

#: Blanks of Python; only the first three are blanks of git.
BLANKS = (" ", "\t", "\r", "\xa0", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\u2028", "\u3000", "\ufeff")
LINE_ENDS = ("\n", "\n", "\r\n", "\r", "\r\r\n", "\n\r", "\v", "\x85", "\u2028", "")
SECTIONS = (
    "[{n}]", '[{n} "{s}"]', '[{n}.{s}]', '[{n}{b}"{s}"]', '[{n} "{s}"{b}]', "[{n}{b}]", '[{n}"{s}"]', "[{b}{n}]", "[]",
    '[{n} "{s}\\"x"]', '[{n} "{s}\\\\"]', '[{n} "{s}\\{b}"]', '[{n} "{s}', '[ "{s}"]', "[{n}]{b}", "[.{n}]",
)  # fmt: skip
NAMES = ("filter", "FILTER", "include", "Include", "includeIf", "my-tool", "a.b")
SUBSECTIONS = ("x", "X", "later.on", "a b", "#;", "[y]", "gitdir:/", "", "é")
KEYS = ("clean", "Smudge", "path", "a-b", "x9", "9x", "a_b", "é", "-a", "clean\r", "clean\xa0", "a.b")
PIECES = (
    "cat", "./check.sh", " ", "  ", "\t", '""', '"a b"', '"\t # "', '"\r;"', "'", "\\n", "\\t", "\\b", '\\"', "\\\\",
    "\\\n", "\\\r\n", "# no", ";", "\r", "\xa0", "\v", "\x85", "é", "=", "[x]", "\x1f", '"a\\\nb"',
)  # fmt: skip
WILD = ('"', "\\x", "\\\r", "\\", "\n", "\r\n", '"\n', "#", "\u2028", "\x1c")


def configuration(source: random.Random) -> bytes:
    """Return a random configuration, whose pieces are legal in some places."""
    odd = source.choice([0.02, 0.1, 0.4])  # Most files of nothing but oddities are refused at their first line.

    def pick(usual: Sequence[str], rare: Sequence[str]) -> str:
        return source.choice(rare if source.random() < odd else usual)

    text = [pick([""], ["\ufeff", "\ufeff\ufeff", "\r", "# comment\n", "\xef"])]
    for _ in range(source.randint(1, 4)):
        name, sub = source.choice(NAMES), source.choice(SUBSECTIONS)
        text.append(pick(SECTIONS[:4], SECTIONS).format(n=name, s=sub, b=pick(BLANKS[:3], BLANKS)))
        text.append(pick(["\n", "\r\n", " ", "# no\r\n", "; no \\\n"], LINE_ENDS))
        for _ in range(source.randint(0, 3)):
            text += [pick(BLANKS[:3], BLANKS), pick(KEYS[:5], KEYS)]
            text.append(pick(["=", " = ", "\t=", "=\r", ""], ["\r=", *BLANKS]))
            if text[-1].strip():
                text += [pick(PIECES, WILD) for _ in range(source.randint(0, 6))]
            text.append(pick(["\n", "\n", "\r\n", "\r\r\n" if text[-1].strip() else "\n"], LINE_ENDS))
    return "".join(text).encode()


def as_git_reads(file: Path) -> list[tuple[str, str | None]] | None:
    """Return every entry of a file as git lists them, or None if git refuses the file."""
    command = ["git", "config", "--file", str(file), "--no-includes", "--list", "-z"]
    process_result = subprocess.run(command, capture_output=True, check=False)
    if process_result.returncode:
        return None
    entries = [
        entry.partition("\n") for entry in process_result.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    ]
    return [(key, value if end else None) for key, end, value in entries]


def as_trust_reads(folder: Path) -> list[tuple[str, str | None]] | None:
    """Return every entry of a repository's configuration as trust reads them, or None if trust refuses it."""
    try:
        programs = list(git_programs(folder))
    except Unreadable:
        return None
    counted_values = [each.content for each in programs if each.path == folder / ".git" / "config"]
    return [(key, value) for each in counted_values for key, value in json.loads(each)]


def blank(entries: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Return the entries with spaces for blanks in values: git before 2.45 replaces blanks."""
    table = str.maketrans("\t\r", "  ")
    return [(key, None if value is None else value.translate(table)) for key, value in entries]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A folder that looks like a repository."""
    path = tmp_path / "repo"
    for name in ("objects", "refs"):
        (path / ".git" / name).mkdir(parents=True)
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return path


@pytest.mark.parametrize("seed", range(8))
def test_trust_reads_each_entry_that_git_reads(repo: Path, seed: int) -> None:
    """Trust may refuse a file that git accepts; it never misses, adds or changes an entry."""
    source, file, read_count = random.Random(seed), repo / ".git" / "config", 0
    for _ in range(120):
        data = configuration(source)
        file.write_bytes(data)
        expected, programs = as_git_reads(file), as_trust_reads(repo)
        if expected is not None and programs is not None:
            assert blank(programs) == blank(expected), data
            read_count += bool(expected)

    assert read_count > 10, "most configurations were refused: the comparison says nothing"


@pytest.mark.parametrize(
    "hidden",
    [
        b"[user] # comment\r[filter \"x\"]\nname = a\n",
        b"[filter \"x\"] # comment\rclean = hidden\nsmudge = shown\n",
        b"[alias]\nb = ; \rclean = hidden\n",
        b"[alias]\nb = \xc2\xa0\n",
        b"[alias]\nb = a\x0b\n",
        b"[alias]\nb = a\x1c\n",
        b"[alias]\nb = a\xc2\x85\n",
        b"[alias]\nb = \"a\rb\"\n",
        b"[alias \"x\ry\"]\nb = c\n",
        b"[alias]\n\tb = a\\\r\n\tc\r\n",
        b"\xef\xbb\xbf[alias]\nb = c\n",
        b"[alias]\rb = c\n",
    ],
)  # fmt: skip
def test_unusual_blanks_are_read_as_git_reads_them(repo: Path, hidden: bytes) -> None:
    """Git knows four blanks; a carriage return alone ends no line."""
    (repo / ".git" / "config").write_bytes(b"[alias]\nfirst = 1\n" if b"\xef" not in hidden else b"")
    with (repo / ".git" / "config").open("ab") as file:
        file.write(hidden)
    expected = as_git_reads(repo / ".git" / "config")
    assert expected is not None

    programs = as_trust_reads(repo)

    assert programs is not None
    kinds = {"alias", "filter"}
    assert blank(programs) == blank([each for each in expected if each[0].partition(".")[0] in kinds])


def test_a_configuration_with_a_zero_byte_is_refused(repo: Path) -> None:
    """Git ends a name or a value at the zero byte."""
    (repo / ".git" / "config").write_bytes(b'[filter "x\0y"]\nclean = ./a.sh\0 --harmless\n')

    with pytest.raises(Unreadable, match="zero byte"):
        find_runnables(repo)


def test_a_tilde_inside_an_include_is_not_a_home_folder(repo: Path, home: Path) -> None:
    """Git expands a tilde only at the beginning: `./~/x` is relative to the configuration."""
    (home / "x").write_text("[user]\nname = a\n")
    (repo / ".git" / "~").mkdir()
    (repo / ".git" / "~" / "x").write_text('[filter "x"]\nclean = ./hidden.sh\n')
    (repo / ".git" / "config").write_text("[include]\npath = ./~/x\n")

    assert "hidden.sh" in "\n".join(map(str, find_runnables(repo)))


def test_an_attribute_after_an_unusual_blank_is_shown(repo: Path) -> None:
    """Git decides which lines are comments."""
    (repo / ".git" / "info").mkdir()
    (repo / ".git" / "info" / "attributes").write_bytes("\xa0#hidden filter=x\n# comment\rfilter=y\n".encode())
    (repo / ".git" / "config").write_text("")

    assert "#hidden filter=x" in "\n".join(map(str, find_runnables(repo)))


def test_the_common_folder_is_the_one_that_git_uses(tmp_path: Path, repo: Path) -> None:
    """Git removes every line end of `commondir`, a carriage return included."""
    (repo / ".git" / "config").write_text('[filter "x"]\nclean = ./hidden.sh\n')
    other = tmp_path / "repo" / ".git\r"
    shutil.copytree(repo / ".git", other)
    (other / "config").write_text("")
    linked = other / "worktrees" / "w"
    linked.mkdir(parents=True)
    (linked / "HEAD").write_text("ref: refs/heads/main\n")
    (linked / "commondir").write_bytes(b"../../../.git\r\n")
    top = tmp_path / "top"
    top.mkdir()
    (top / ".git").write_text(f"gitdir: {linked}\n")

    assert "hidden.sh" in "\n".join(map(str, find_runnables(top)))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("remote.origin.url", "ext::./check.sh"),
        ("remote.origin.pushurl", "ext::./check.sh"),
        ("branch.main.remote", "ext::./check.sh"),
        ("branch.main.mergeOptions", "--strategy=check"),
        ("submodule.a.url", "ext::./check.sh"),
        ("gc.recentObjectsHook", "./check.sh"),
        ("protocol.ext.allow", "always"),
    ],
)
def test_an_address_or_option_that_names_a_program_is_shown(repo: Path, key: str, value: str) -> None:
    """A transport helper (`ext::`) is a program, and so is the hook of garbage collection."""
    subprocess.run(["git", "config", "--file", str(repo / ".git" / "config"), key, value], check=True)

    assert value in "\n".join(map(str, find_runnables(repo)))


def test_an_address_without_a_program_is_not_shown(repo: Path) -> None:
    """A remote may change without a new question."""
    for key, value in {"remote.origin.url": "https://example.org/a.git", "branch.main.remote": "origin"}.items():
        subprocess.run(["git", "config", "--file", str(repo / ".git" / "config"), key, value], check=True)

    assert find_runnables(repo) == ()
