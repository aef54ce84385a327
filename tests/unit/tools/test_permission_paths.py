"""Paths and patterns, with the meaning of ignore files, for every name of a file."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import time

import pytest

from ramet.core.errors import InvalidValue
from ramet.core.policy.permissions import Effect, PermissionRule, Permissions
from ramet.tools.permission_checks import hidden_files
from ramet.tools.permissions.evaluation import Call, judge
from ramet.tools.permissions.files.globs import TooManyFiles
from ramet.tools.permissions.files.names import FileNames
from ramet.tools.permissions.path_rules import bind, path_pattern, widens
from tests.support.context import make_context
from tests.support.processor_time import QUADRATIC_S


def rule(specifier: str, project: pathlib.Path, *, effect: Effect = "deny", tool: str = "Read") -> PermissionRule:
    """Return a rule in the settings of `project`, whose home is beside it."""
    home = str(project.parent / "home")
    return PermissionRule(effect=effect, tool=tool, specifier=specifier, source="s", root=str(project), home=home)


def names_of(name: str, cwd: str) -> tuple[str, ...]:
    """Return each name of a file."""
    return FileNames().of(name, cwd)


def is_denied(specifier: str, name: str, project: pathlib.Path, *, cwd: pathlib.Path | None = None) -> bool:
    """Return whether a deny rule matches a name."""
    base = str(cwd or project)
    return bind(rule(specifier, project), base).fits(names_of(name, base))


@pytest.mark.parametrize(
    ("specifier", "fits", "misses"),
    [
        ("./secrets/**", ["secrets/a", "secrets/a/b", "./secrets/../secrets/a"], ["secrets", "a/secrets/b"]),
        ("secrets/**", ["secrets/a"], ["a/secrets/b"]),
        ("secrets", ["secrets", "secrets/a", "a/secrets/b"], ["secrets2"]),
        ("secrets/", ["secrets/a"], ["secrets2/a"]),
        (".env", [".env", "a/b/.env"], [".env.example"]),
        ("./.env", [".env"], ["a/.env"]),
        ("*.pem", ["x.pem", "a/x.pem"], ["x.pem.txt"]),
        ("**/*.key", ["x.key", "a/b/x.key"], ["x.keys"]),
        ("/src/**/*.ts", ["src/x.ts", "src/a/b/x.ts"], ["x.ts", "a/src/x.ts"]),
        ("[ab]?c", ["axc", "d/bxc"], ["cxc", "ac"]),
        ("*.{pem,key}", ["x.pem", "x.key"], ["x.txt"]),
        ("//etc/**", ["/etc/passwd", "../../../../../../../../../../etc/passwd"], ["etc/passwd"]),
        ("**", ["a", "a/b"], ["/etc/passwd"]),
    ],
)
def test_a_path_pattern_fits_as_documented(
    tmp_path: pathlib.Path, specifier: str, fits: list[str], misses: list[str]
) -> None:
    """Names are relative to the project."""
    assert [each for each in fits if not is_denied(specifier, each, tmp_path)] == []
    assert [each for each in misses if is_denied(specifier, each, tmp_path)] == []


def test_a_prefix_selects_the_folder_of_a_path(tmp_path: pathlib.Path) -> None:
    """`/` is the settings' folder, `./` the working directory, and `~/` the home."""
    project, below_folder = tmp_path / "project", tmp_path / "project" / "below"
    below_folder.mkdir(parents=True)

    assert is_denied("/x", str(project / "x"), project, cwd=below_folder)
    assert not is_denied("./x", str(project / "x"), project, cwd=below_folder)
    assert is_denied("./x", "x", project, cwd=below_folder)
    assert is_denied("~/.ssh/**", str(tmp_path / "home" / ".ssh" / "id"), project)


def test_a_copy_of_the_folder_keeps_its_rules(tmp_path: pathlib.Path) -> None:
    """`/x` of a project is also refused in a worktree elsewhere."""
    project, copy = tmp_path / "project", tmp_path / "copy"
    project.mkdir()
    copy.mkdir()

    assert is_denied("/secrets/**", "secrets/key", project, cwd=copy)


def test_a_link_is_denied_by_its_name_and_by_its_target(tmp_path: pathlib.Path) -> None:
    """Each link of a chain counts, and so does a folder that is a link."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("x")
    (tmp_path / "middle").symlink_to("secrets/key")
    (tmp_path / "link").symlink_to("middle")
    (tmp_path / "folder").symlink_to("secrets")
    (tmp_path / "circle").symlink_to("circle")

    for specifier in ("./secrets/**", "./middle", "./link"):
        assert is_denied(specifier, "link", tmp_path)
    assert is_denied("./secrets/**", "folder/key", tmp_path)
    assert is_denied("./circle", "circle", tmp_path)
    assert not is_denied("./other", "link", tmp_path)


def test_a_link_is_allowed_only_with_its_target(tmp_path: pathlib.Path) -> None:
    """A link out of an allowed folder is not allowed."""
    (tmp_path / "public").mkdir()
    (tmp_path / "key").write_text("x")
    (tmp_path / "public" / "link").symlink_to("../key")
    allow = rule("./public/**", tmp_path, effect="allow")

    assert widens(allow, names_of("public/file", str(tmp_path)), str(tmp_path))
    assert not widens(allow, names_of("public/link", str(tmp_path)), str(tmp_path))


def test_a_project_behind_a_link_has_its_rules(tmp_path: pathlib.Path) -> None:
    """The rules hold under the name of the link, and under the real name."""
    (tmp_path / "real" / "secrets").mkdir(parents=True)
    project = tmp_path / "link"
    project.symlink_to("real")

    assert is_denied("/secrets/**", "secrets/key", project)
    assert is_denied("/secrets/**", str(tmp_path / "real" / "secrets" / "key"), project)


@pytest.mark.parametrize("name", ["\ud800", "x" * 4_000, "a/" * 2_000, "a\0b", ""])
def test_an_impossible_name_is_no_error(tmp_path: pathlib.Path, name: str) -> None:
    """The tool refuses such a name by itself."""
    assert names_of(name, str(tmp_path))


def test_a_name_longer_than_the_kernel_accepts_is_refused(tmp_path: pathlib.Path) -> None:
    """The work on a name grows with its length."""
    with pytest.raises(TooManyFiles):
        names_of("x" * 4_097, str(tmp_path))


@pytest.mark.parametrize(
    "command",
    [
        "cat $PWD//secrets/key",
        "cat ~+//secrets/key",
        "cat $HOME//project/secrets/key",
        "cat ~///project/secrets/key",
        "cat ${PWD}/secrets/key",
        'cat "${PWD}"/secrets/key',
        'cat "${PWD}/secrets"/key',
        "cat ${HOME}/project/secrets/key",
        "grep --file=${PWD}/secrets/key x",
        "shopt -s nocaseglob; cat SECRETS*/key",
        "shopt -s nocaseglob; cat S[E]CRETS/K*",
        "shopt -s dotglob; cat */hidden",
        "GLOBIGNORE=x; cat */hidden",
        "shopt -s globstar; cat **/deep-key",
        "cat sec{r..r}ets/key",
        "cat {r..t}ecrets/key",
        "cat secrets/k{1..3}",
        "cat secrets/k{08..12..2}",
        "cat secrets/k{1..9999}",
        "cat {1..400}{1..400}/../secrets/key",
        "touch secrets/new{1..9999}",
        "cat /proc/self/cwd/secrets/key",
        "cat /dev/../proc/thread-self/cwd/secrets/key",
        "cat /proc/1/task/1/cwd/secrets/key",
        "cat /proc/self/root{project}/secrets/key",
        "cat /proc/self/root/proc/self/cwd/secrets/key",
        "cd /proc/self/cwd/secrets && cat key",
    ],
)
def test_another_spelling_of_a_name_is_denied(tmp_path: pathlib.Path, command: str) -> None:
    """Bash expands slashes, variables, patterns with their options, sequences and links of a process."""
    project = tmp_path / "project"
    for folder in ("secrets", ".hid", "a/b/c/deep"):
        (project / folder).mkdir(parents=True)
    for file in ("secrets/key", "secrets/k1", ".hid/hidden", "a/b/c/deep-key"):
        (project / file).touch()
    specifiers = ("./secrets/**", "./.hid/**", "./a/b/c/**")
    rules = [
        PermissionRule(effect="deny", tool=tool, specifier=each, source="s", root=str(project), home=str(tmp_path))
        for each in specifiers
        for tool in ("Read", "Edit")
    ]
    call = Call("Bash", {"command": command.replace("{project}", str(project))}, str(project))

    assert judge(Permissions(rules=tuple(rules)), call).verdict == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "for i in {1..1000}; do echo $i; done",
        "mkdir -p d{1..20}/e{1..20}",
        "shopt -s nocaseglob; cat X*",
        "shopt -s globstar; wc -l src/**/*.py",
        "cat ${PWD}/src/a ${HOME}/x f{1..3} f{a..c}",
        "touch f{01..99}",
        "cat */key",
        "cat /proc/self/status",
    ],
)
def test_the_same_spelling_of_other_names_passes(tmp_path: pathlib.Path, command: str) -> None:
    """Loops and sequences are usual."""
    for folder in ("secrets", ".hid", "src/x"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".hid" / "key").touch()
    rules = tuple(
        rule(each, tmp_path, tool=tool) for each in ("./secrets/**", "./.hid/**") for tool in ("Read", "Edit")
    )

    assert judge(Permissions(rules=rules), Call("Bash", {"command": command}, str(tmp_path))).verdict is None


@pytest.mark.parametrize("name", ["x" * 4_097, "a/" * 200_000, "a/../" * 1_000 + ".claude/settings.json"])
def test_a_name_that_is_too_long_matches_every_narrowing_rule(tmp_path: pathlib.Path, name: str) -> None:
    """No file has such a name, so none is looked for: that would take longer with each character."""
    start_time = time.process_time()

    def found(effect: Effect, tool: str = "Read") -> Effect | None:
        rules = Permissions(rules=(rule("./secrets/**", tmp_path, effect=effect, tool=tool),))
        return judge(rules, Call(tool, {"file_path": name}, str(tmp_path))).verdict

    assert [found("deny"), found("ask"), found("allow")] == ["deny", "ask", None]
    assert found("allow", "Edit") == "ask"  # It may be the file that the rules are from.
    assert time.process_time() - start_time < QUADRATIC_S


def test_many_names_in_many_folders_match_every_rule(tmp_path: pathlib.Path) -> None:
    """A command may name 500 files and 64 folders, each by a chain of links: not each of them is looked up."""
    for at in range(60):
        (tmp_path / f"d{at}").mkdir()
        (tmp_path / f"d{at}" / "l0").symlink_to("../" + "d0/../" * 100 + f"d{at}/f")
        for link in range(1, 39):
            (tmp_path / f"d{at}" / f"l{link}").symlink_to("../" + "d0/../" * 100 + f"d{at}/l{link - 1}")
    folders = " ".join(f"d{at}" for at in range(60))
    permissions = Permissions(rules=(rule("./secrets/**", tmp_path),))
    start_time = time.process_time()

    def found(names: str) -> Effect | None:
        return judge(permissions, Call("Bash", {"command": f"cd d0; cat {folders} {names}"}, str(tmp_path))).verdict

    assert found("l38") == "deny"
    assert found(" ".join(f"f{at}" for at in range(420))) == "deny"
    assert found(" ".join(f"l38/../l{at % 39}/f{at}" for at in range(420))) == "deny"
    assert found("a b c") is None
    assert time.process_time() - start_time < QUADRATIC_S


@pytest.mark.parametrize("word", ["{" * 4_000, "{a," * 1_300, "{a,b}" * 800, "*" * 4_000, "*/" * 2_000, "[" * 4_000])
def test_a_deeply_nested_pattern_is_judged(tmp_path: pathlib.Path, word: str) -> None:
    """Patterns of many braces stand for more files than are looked for."""
    permissions = Permissions(rules=(rule("./secrets/**", tmp_path),))
    command = "cat " + " ".join(f"{word}{at}" for at in range(20))
    start_time = time.process_time()

    verdict = judge(permissions, Call("Bash", {"command": command}, str(tmp_path))).verdict

    assert (verdict == "deny") is ("{" in word or "/" in word)
    assert time.process_time() - start_time < QUADRATIC_S


def test_hundreds_of_files_in_a_few_folders_are_judged_one_by_one(tmp_path: pathlib.Path) -> None:
    """Usual commands do not reach the limit."""
    (tmp_path / "src").mkdir()
    for at in range(1_500):
        (tmp_path / "src" / f"f{at}").touch()
    permissions = Permissions(rules=(rule("./secrets/**", tmp_path),))
    commands = ("cd src && cat " + " ".join(f"f{at}" for at in range(400)), "cat src/*", "cd src; cat *")

    calls = [Call("Bash", {"command": each}, str(tmp_path)) for each in commands]
    assert [judge(permissions, each).verdict for each in calls] == [None, None, None]


def test_a_path_that_is_too_deep_to_judge_is_denied(tmp_path: pathlib.Path) -> None:
    """The limit of work must not be a way around a rule."""
    assert is_denied("*.pem", "a/" * 300 + "x", tmp_path)


@pytest.mark.parametrize("specifier", ["!x", "~bob/x", "../x", "a/../b", "", "/", "./", "x\0"])
def test_a_meaningless_pattern_is_refused(specifier: str) -> None:
    """Negation, homes of other users, and ways up are not supported."""
    with pytest.raises(InvalidValue):
        path_pattern(specifier)


@pytest.mark.parametrize("specifier", ["./secrets/**", "secrets", "/secrets/**", "//{project}/secrets/**"])
def test_a_rule_covers_the_copies_in_worktrees(tmp_path: pathlib.Path, specifier: str) -> None:
    """The rule matches from the project, the copy itself and another copy, and from a copy towards the project."""
    project = tmp_path / "project"
    copy, other = (project / ".ramet" / "worktrees" / each for each in ("one", "two"))
    text = specifier.format(project=str(project).lstrip("/"))

    assert is_denied(text, ".ramet/worktrees/one/secrets/key", project)
    assert is_denied(text, "secrets/key", project, cwd=copy)
    assert is_denied(text, "../two/secrets/key", project, cwd=copy)
    assert is_denied(text, "../../../secrets/key", project, cwd=other)
    assert not is_denied(text, ".ramet/worktrees/one/src/key", project)


@pytest.mark.parametrize("specifier", ["./secrets/**", "secrets", "/secrets/**", "//{project}/secrets/**"])
def test_a_rule_of_a_subfolder_covers_the_copies(tmp_path: pathlib.Path, specifier: str) -> None:
    """A copy is one of the whole repository, wherever in it the session works."""
    project = tmp_path / "repo" / "sub"
    copies = tmp_path / "repo" / ".ramet" / "worktrees"
    text = specifier.format(project=str(project).lstrip("/"))

    assert is_denied(text, str(copies / "one" / "sub" / "secrets" / "key"), project)
    assert is_denied(text, "../../two/sub/secrets/key", project, cwd=copies / "one" / "sub")
    assert is_denied(text, str(project / "secrets" / "key"), project, cwd=copies / "one" / "sub")
    assert not is_denied(text, str(copies / "one" / "sub" / "src" / "key"), project)


def test_a_copy_inside_a_copy_is_covered(tmp_path: pathlib.Path) -> None:
    """A repository without a main working tree has copies inside of copies."""
    assert is_denied("./secrets/**", ".ramet/worktrees/one/.ramet/worktrees/two/secrets/key", tmp_path)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("specifier", ["./secrets/**", "secrets", "/secrets/**"])
def test_a_rule_of_the_users_own_worktree_covers_the_copies(tmp_path: pathlib.Path, specifier: str) -> None:
    """Ramet's copies of a linked worktree are in the main working tree."""
    main, project = tmp_path / "main", tmp_path / "feature"
    for args in (
        ["init", "--quiet", str(main)],
        [
            "-C",
            str(main),
            "-c",
            "user.name=A",
            "-c",
            "user.email=a@localhost",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "s",
        ],
        ["-C", str(main), "worktree", "add", "--quiet", str(project)],
        ["-C", str(main), "worktree", "add", "--quiet", str(copy := main / ".ramet" / "worktrees" / "one")],
    ):
        subprocess.run(["git", *args], check=True, capture_output=True)

    assert is_denied(specifier, str(copy / "secrets" / "key"), project)
    assert is_denied(specifier, str(project / "secrets" / "key"), project, cwd=copy)
    assert not is_denied(specifier, str(copy / "src" / "key"), project)


def test_a_link_into_a_copy_is_denied(tmp_path: pathlib.Path) -> None:
    """A name that leads into a copy counts as a name in the copy."""
    (tmp_path / ".ramet" / "worktrees" / "one" / "secrets").mkdir(parents=True)
    (tmp_path / "link").symlink_to(".ramet/worktrees/one")

    assert is_denied("./secrets/**", "link/secrets/key", tmp_path)


@pytest.mark.parametrize("command", ["cat {}/key", "cat {}/*", "sort < {}/key", "cp {}/key /tmp/x"])
def test_a_command_that_names_a_file_of_a_copy_is_denied(tmp_path: pathlib.Path, command: str) -> None:
    """Rules for Read hold for files that a command reads in a copy."""
    folder = tmp_path / ".ramet" / "worktrees" / "one" / "secrets"
    folder.mkdir(parents=True)
    (folder / "key").write_text("x")
    permissions = Permissions(rules=(rule("./secrets/**", tmp_path),))
    call = Call("Bash", {"command": command.format(".ramet/worktrees/one/secrets")}, str(tmp_path))

    assert judge(permissions, call).verdict == "deny"


def test_a_search_omits_files_of_copies(tmp_path: pathlib.Path) -> None:
    """A file that a rule denies in the project is not found in a copy."""
    copy = tmp_path / ".ramet" / "worktrees" / "one"
    context = make_context(cwd=tmp_path, permissions=Permissions(rules=(rule("./secrets/**", tmp_path),)))

    hidden = hidden_files(context, tmp_path)

    assert hidden is not None
    assert hidden(str(copy / "secrets" / "key"))
    assert not hidden(str(copy / "src" / "key"))


@pytest.mark.parametrize("specifier", ["./src/**", "/src/**"])
def test_an_allow_rule_does_not_cover_copies(tmp_path: pathlib.Path, specifier: str) -> None:
    """A copy may hold the work of another agent: nobody allowed that."""
    allow = rule(specifier, tmp_path, effect="allow")
    cwd_text = str(tmp_path)

    assert widens(allow, names_of("src/a", cwd_text), cwd_text)
    assert not widens(allow, names_of(".ramet/worktrees/one/src/a", cwd_text), cwd_text)
