"""Commands of a git configuration that a checkout may provide."""

from __future__ import annotations

from pathlib import Path

import pytest

from ramet.agent.files.git_programs import may_use_checkout_file


@pytest.fixture
def working_tree(tmp_path: Path) -> Path:
    """A working tree with a script."""
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "f.sh").write_text("cat\n")
    (tmp_path / "plain.py").write_text("\n")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        "./tools/f.sh",
        "tools/f.sh %f",
        "sh tools/f.sh",
        "python3 plain.py",
        "sh tools/deleted.sh",
        "sh deleted.sh",
        '"$PWD"/tools/f.sh',
        "$(git rev-parse --show-toplevel)/tools/f.sh",
        "cat|./x",
        "A=1 ./x",
        "sh -c ./tools/f.sh",
        ". tools/deleted.sh",
        "sed -f s/a/b/",
        "sed --file=tools/f.sh",
        "sed -fplain.py",
        "sed -nf later.sed",
        "cat | /usr/bin/sed --file later.sed",
        "dc -fplain.py",
        "/bin/sh later.sh",
        "lua5.4 later.lua",
        "nodejs later",
        "npx later",
        "gmake -f later",
        "/usr/bin/env later",
        "/proc/self/cwd/later.sh",
        "//dev/./fd/9/later.sh",
        "~/bin/python3 later.py",
        "cd .. && make",
        "sh 'unfinished",
        "perl -pe 's/a/b/'",
        "sed 's/a/./tools\\/f.sh/e'",
    ],
)
def test_a_command_from_the_checkout_is_recognised(working_tree: Path, command: str) -> None:
    """The file may be in the working tree or only in a commit."""
    assert may_use_checkout_file(command, [working_tree])


def test_a_path_through_a_link_of_the_checkout_is_recognised(working_tree: Path) -> None:
    """The link may lead to the folder in which git runs."""
    (working_tree / "here").symlink_to("/proc/self/cwd")

    assert may_use_checkout_file(f"{working_tree}/here/later.sh", [working_tree])
    assert not may_use_checkout_file(f"{working_tree}/tools/f.sh", [working_tree])


@pytest.mark.parametrize(
    "command",
    [
        "git-lfs filter-process",
        "cat > /dev/null",
        "/usr/bin/tr -d f",
        "git-lfs smudge -- %f",
        "cat",
        "sed s/one/TRUSTED/",
        "sed -e 's/a b/c/g' -e s/d/e/",
        "sed 's/x$/y/'",
        "tr a-z A-Z",
        "/usr/local/bin/strip --all",
        "~/bin/strip",
        "expand --tabs=4",
    ],
)
def test_a_command_of_the_machine_is_not_from_the_checkout(working_tree: Path, command: str) -> None:
    """PATH or an absolute path gives the program, and no word names a file of the working tree."""
    assert not may_use_checkout_file(command, [working_tree])
