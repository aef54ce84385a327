"""Trust covers each script that a command of a folder names, in any notation of a shell, git or pip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ramet.agent.files.bounded_read import Unreadable
from ramet.agent.files.trust import find_runnables, is_trusted, may_run_git, trust
from ramet.cli.main import main

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def user_dir(home: Path) -> Path:
    return home / ".ramet"


@pytest.fixture
def project(home: Path) -> Path:
    """A checkout in the user's home; `part` is the folder that a person trusts."""
    path = home / "project"
    for name in (
        "check.sh",
        "part/check.sh",
        "part/tools/check.sh",
        "part/tools/only.sh",
        "part/a,b.sh",
        "part/a b.sh",
        "part/a=b;c.sh",
    ):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("cat\n")
    (home / "alias").symlink_to(path / "part" / "tools")
    subprocess.run(["git", "init", "--quiet", str(path)], check=True)
    return path


def write_hook(folder: Path, command: str) -> None:
    """Write settings with a hook."""
    (folder / ".claude").mkdir(exist_ok=True)
    hooks = {"Stop": [{"hooks": [{"type": "command", "command": command}]}]}
    (folder / ".claude" / "settings.json").write_text(json.dumps({"hooks": hooks}))


COMMANDS = {
    "./check.sh; exit 0": "part/check.sh",
    "(./check.sh)": "part/check.sh",
    "./check.sh&&true": "part/check.sh",
    "./check.sh||true": "part/check.sh",
    "true|./check.sh": "part/check.sh",
    "{ ./check.sh; }": "part/check.sh",
    "sh -c 'exec ./check.sh \"$@\"' x": "part/check.sh",
    "bash -lc \"sh -c './check.sh; true'\"": "part/check.sh",
    'cd "$CLAUDE_PROJECT_DIR"; ./check.sh': "part/check.sh",
    "cd tools; ./check.sh": "part/tools/check.sh",
    "cd $CLAUDE_PROJECT_DIR/tools && exec ./check.sh": "part/tools/check.sh",
    "PATH=tools:$PATH check.sh": "part/tools/check.sh",
    "D=tools; \"$D\"/check.sh": "part/tools/check.sh",
    "FOO=1 ./check.sh>/dev/null": "part/check.sh",
    "if true; then ./check.sh; fi": "part/check.sh",
    "${CLAUDE_PROJECT_DIR:-.}/check.sh": "part/check.sh",
    "$CLAUDE_PROJECT_DIR/tools/check.sh": "part/tools/check.sh",
    "timeout 5 sh <./check.sh": "part/check.sh",
    "echo `./check.sh`": "part/check.sh",
    "$(git rev-parse --show-toplevel)/check.sh": "check.sh",
    "$(git rev-parse --show-toplevel)/part/tools/check.sh": "part/tools/check.sh",
    "../check.sh": "check.sh",
    "~/project/check.sh": "check.sh",
    "~/alias/only.sh": "part/tools/only.sh",
    "$HOME/project/part/tools/check.sh": "part/tools/check.sh",
    "./ch\"eck\".sh;true": "part/check.sh",
    "./a\\ b.sh; true": "part/a b.sh",
    "sh -c 'exec \"./a b.sh\"'": "part/a b.sh",
    "'./a=b;c.sh'|cat": "part/a=b;c.sh",
    "true # don't\n./check.sh": "part/check.sh",
    "true # don't\n./ch\"eck\".sh": "part/check.sh",
    "./che\\\nck.sh; true": "part/check.sh",
    "echo `./a,b.sh`": "part/a,b.sh",
    "./a,b.sh$NOTHING": "part/a,b.sh",
    "$'./check.sh'": "part/check.sh",
    "docker run -v $PWD:/w image sh /w/tools/check.sh": "part/tools/check.sh",
    "sed -ftools/check.sh": "part/tools/check.sh",
    "sed -nEfcheck.sh": "part/check.sh",
    "sed --file=check.sh": "part/check.sh",
    "curl --data @check.sh": "part/check.sh",
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_script_that_a_command_names_is_covered(project: Path, user_dir: Path, command: str) -> None:
    """The script is shown to the person, and its change withdraws the trust."""
    part, script = project / "part", project / COMMANDS[command]
    write_hook(part, command)
    name = str(script.relative_to(part)) if script.is_relative_to(part) else str(script)
    assert name in {each.path for each in trust(part, user_dir)}

    script.write_text("evil\n")

    assert not is_trusted(part, user_dir)


@pytest.mark.parametrize("value", ["{top}/check.sh", "~/project/check.sh", "sed -fcheck.sh", "sh -c './check.sh;cat'"])
def test_a_script_of_a_filter_above_the_folder_is_covered(project: Path, user_dir: Path, value: str) -> None:
    """The filter's script lies at the top of the checkout."""
    config = str(project / ".git" / "config")
    subprocess.run(["git", "config", "--file", config, "filter.x.clean", value.format(top=project)], check=True)
    trust(project / "part", user_dir)
    assert is_trusted(project / "part", user_dir)

    (project / "check.sh").write_text("evil\n")

    assert not is_trusted(project / "part", user_dir)


def test_a_script_name_with_a_blank_is_covered_for_each_git_version(project: Path, user_dir: Path) -> None:
    """Git before 2.45 replaces a tab by a space."""
    with (project / ".git" / "config").open("a") as file:
        file.write("[filter \"x\"]\nclean = './a\tb.sh'\n")
    trust(project / "part", user_dir)

    (project / "part" / "a b.sh").write_text("evil\n")

    assert not is_trusted(project / "part", user_dir)


@pytest.mark.parametrize(
    "value", ["/bin/sh later.sh", "/usr/bin/env later", "/proc/self/cwd/later.sh", "/dev/fd/../cwd/x", "~/bin/sh later"]
)
def test_an_absolute_path_may_run_a_file_of_the_checkout(project: Path, user_dir: Path, value: str) -> None:
    """An interpreter with an absolute path runs a file that git checks out."""
    config = str(project / ".git" / "config")
    subprocess.run(["git", "config", "--file", config, "filter.x.clean", value], check=True)
    trust(project, user_dir)

    assert is_trusted(project, user_dir)
    assert not may_run_git(project, user_dir)


def test_a_permission_rule_is_not_a_command(project: Path, user_dir: Path) -> None:
    """The named file is not run, and may change."""
    (project / ".claude").mkdir()
    rules = {"permissions": {"allow": ["Read(./check.sh)", "Edit(check.sh)"]}}
    (project / ".claude" / "settings.json").write_text(json.dumps(rules))
    trust(project, user_dir)

    (project / "check.sh").write_text("other\n")

    assert is_trusted(project, user_dir)


def test_a_link_that_leads_out_of_the_checkout_is_covered(project: Path, user_dir: Path, tmp_path: Path) -> None:
    """The link decides which program runs, such as the interpreter of a virtual environment."""
    (tmp_path / "one").write_text("cat\n")
    (tmp_path / "two").write_text("cat\n")
    (project / "python").symlink_to(tmp_path / "one")
    write_hook(project, "./python; true")
    trust(project, user_dir)
    (tmp_path / "one").write_text("another version\n")
    assert is_trusted(project, user_dir)

    (project / "python").unlink()
    (project / "python").symlink_to(tmp_path / "two")

    assert not is_trusted(project, user_dir)


@pytest.mark.parametrize("command", ["cd link; ./check.sh", "link/check.sh", "pip"])
def test_a_linked_folder_out_of_the_checkout_is_covered(
    project: Path, user_dir: Path, tmp_path: Path, command: str
) -> None:
    """The link decides where the script or package comes from."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "check.sh").write_text("cat\n")
    (project / "link").symlink_to(tmp_path / "one")
    if command == "pip":
        (project / "ramet.yaml").write_text("installs: {allowed: true, pip_args: [-f, link]}\n")
    else:
        write_hook(project, command)
    trust(project, user_dir)
    assert is_trusted(project, user_dir)

    (project / "link").unlink()
    (project / "link").symlink_to(tmp_path / "two")

    assert not is_trusted(project, user_dir)


@pytest.mark.parametrize("setting", ["store", "policy_adapter"])
@pytest.mark.parametrize("file", ["house.py", "house/__init__.py", "house/rules.py", "src/house/rules/__init__.py"])
def test_a_module_named_by_server_settings_is_covered(project: Path, user_dir: Path, setting: str, file: str) -> None:
    """The module is imported from the folder, as by `python -m`."""
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    (project / file).write_text("RULES = 1\n")
    (project / "ramet.yaml").write_text(f"{setting}: house.rules:Rules\n")
    trust(project, user_dir)
    assert is_trusted(project, user_dir)

    (project / file).write_text("RULES = 2\n")

    assert not is_trusted(project, user_dir)


def test_a_file_beyond_a_limit_is_refused_in_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal names the file and the limit."""
    monkeypatch.setattr("ramet.agent.files.scripts.MAX_SCRIPT", 100)
    with (project / "check.sh").open("ab") as file:
        os.truncate(file.fileno(), 101)
    write_hook(project, "./check.sh; true")

    assert main(["trust", str(project)]) == 1

    assert capsys.readouterr().err.endswith("check.sh: a command names this file, and it is larger than 100 bytes\n")


@pytest.mark.parametrize(("limit", "most"), [("MAX_FILES", 1), ("MAX_TOTAL", 5), ("MAX_TEXT", 30), ("MAX_TRIES", 5)])
def test_too_many_named_files_are_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """A folder cannot keep ramet busy by naming many files."""
    write_hook(project, "./check.sh; part/check.sh")
    assert find_runnables(project)
    monkeypatch.setattr(f"ramet.agent.files.scripts.{limit}", most)

    with pytest.raises(Unreadable, match=rf"its commands name more than {most} "):
        find_runnables(project)


def test_a_command_that_is_too_long_is_refused(project: Path) -> None:
    """No shell would accept it."""
    write_hook(project, "a" * 200_000)

    with pytest.raises(Unreadable, match="a command is longer than 131072 characters"):
        find_runnables(project)


def test_a_pipe_in_place_of_a_script_is_not_read(project: Path, user_dir: Path) -> None:
    """Reading it would wait for a writer."""
    (project / "check.sh").unlink()
    os.mkfifo(project / "check.sh")
    write_hook(project, "./check.sh; true")

    trust(project, user_dir)

    assert is_trusted(project, user_dir)


LINKS = "find-links"  #: of pip; no file of the project may give pip that option itself
PIP = {
    "[-f, wheels]": "wheels/a.whl",
    f"[--{LINKS}=wheels]": "wheels/a.whl",
    "[-fwheels]": "wheels/a.whl",
    f"['--{LINKS}=file:./wheels']": "wheels/a.whl",
    "[--constraint=limits.txt]": "limits.txt",
    "[-c, limits.txt]": "limits.txt",
    "[-climits.txt]": "limits.txt",
    "[-r, more.txt]": "more.txt",
    "[-r, nested/first.txt] ": "nested/second.txt",
    "[-r, nested/first.txt]": "nested/wheels/b.whl",
    "[-e, local]": "local/pkg/build.py",
}


@pytest.mark.parametrize("arguments", PIP)
def test_files_that_pip_would_read_are_covered(project: Path, user_dir: Path, arguments: str) -> None:
    """Folders of packages and requirement files with their nested files are covered."""
    for name in (*PIP.values(), "nested/first.txt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("text\n")
    (project / "nested" / "first.txt").write_text(f"-r second.txt\n--{LINKS} wheels\n")
    (project / "ramet.yaml").write_text(f"installs: {{allowed: true, pip_args: {arguments.strip()}}}\n")
    trust(project, user_dir)
    assert is_trusted(project, user_dir)

    (project / PIP[arguments]).write_text("other\n")

    assert not is_trusted(project, user_dir)


@pytest.mark.parametrize(
    "name", ["\xad", "\u061c", "\u180e", "\u200b", "\u2028", "\ue000", "\U000e0041", "\u0378", "\r"]
)
def test_an_invisible_character_is_spelled_out(project: Path, name: str) -> None:
    """Otherwise a name could look like another one."""
    write_hook(project, f"make{name}lint")

    runnables = "\n".join(map(str, find_runnables(project)))

    assert name not in runnables
    assert f"make\\u{{{ord(name):x}}}lint" in runnables or name == "\r"


def test_a_visible_character_is_shown_as_it_is(project: Path) -> None:
    """Letters of any language, signs and emoji are not spelled out."""
    write_hook(project, "make Prüfung 検査 🔥 “x” –")

    assert "make Prüfung 検査 🔥 “x” –" in "\n".join(map(str, find_runnables(project)))
