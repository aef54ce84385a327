"""Writable mounts: a run changes the files that it was granted, and nothing that gives it rights on the host."""

from __future__ import annotations

import os
import shutil
import stat
from typing import Any

import pytest

from tests.security.attacks import mounts, writing
from tests.security.kit import Kernel, assert_refused, assert_works, has_succeeded, wait_until

PARENT: dict[str, Any] = {"allow_sub_agents": True, "memory_mb": 400, "max_sub_agents": 50, "timeout_seconds": 50}

#: Files of a project: repositories, a worktree, settings at the top, and others that are a project's own.
FILES = (
    ".git/config", ".git/hooks/pre-commit", "libs/one/.git/config", "libs/two/.git", "server.git/HEAD",
    "server.git/objects/one", "server.git/refs/one", "server.git/config", ".vscode/tasks.json", ".envrc",
    ".claude/settings.json", ".ramet/agents/one.md", ".ramet/settings.json", "src/main.py", "src/.vscode/tasks.json",
    "vendor/deep/file", "vendor/build/file",
)  # fmt: skip

#: What programs of the host obey, and how a guest might change each.
OBEYED = {
    "write config": ["write", ".git/config"],
    "write a hook": ["write", ".git/hooks/pre-commit"],
    "new hook": ["write", ".git/hooks/post-checkout"],
    "rename .git": ["rename", ".git"],
    "mode of a hook": ["chmod", ".git/hooks/pre-commit"],
    "hard link to the config": ["hard link", ".git/config", "config"],
    "nested config": ["write", "libs/one/.git/config"],
    "nested .git moved with its folder": ["move parent", "libs/one/.git"],
    "folder above it renamed": ["rename", "libs"],
    "file .git": ["write", "libs/two/.git"],
    "remove file .git": ["remove", "libs/two/.git"],
    "replace file .git": ["replace", "src/main.py", "libs/two/.git"],
    "bare repository": ["write", "server.git/config"],
    "rename bare repository": ["rename", "server.git"],
    "tasks of an editor": ["write", ".vscode/tasks.json"],
    "shell": ["write", ".envrc"],
    "remove shell": ["remove", ".envrc"],
    "agent of another maker": ["write", ".claude/settings.json"],
    "agent file": ["write", ".ramet/agents/one.md"],
    "settings": ["write", ".ramet/settings.json"],
    "new agent file": ["write", ".ramet/agents/two.md"],
    "rename .ramet": ["rename", ".ramet"],
}


class Project:
    """Folder that an operator grants for writing, with the files of a project."""

    def __init__(self, kernel: Kernel, name: str, files: tuple[str, ...] = FILES) -> None:
        self.kernel, self.path = kernel, kernel.base / "projects" / name
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        for each in files:
            (self.path / each).parent.mkdir(parents=True, exist_ok=True)
            (self.path / each).write_text("of the project")
        self.give()

    def give(self) -> None:
        """Make the kernel's user the owner of everything in the folder."""
        if os.geteuid() == 0 and self.kernel.uid:
            for each in (self.path.parent, self.path, *self.path.rglob("*")):
                os.chown(each, self.kernel.uid, self.kernel.uid, follow_symlinks=False)

    def cases(self, cases: dict[str, list[str]]) -> dict[str, list[str]]:
        """Return the cases with paths in the folder."""
        return {
            name: [action, *(each if each.startswith("/") else str(self.path / each) for each in paths)]
            for name, (action, *paths) in cases.items()
        }

    def names(self) -> list[str]:
        """Return the names at the top."""
        return sorted(each.name for each in self.path.iterdir())

    def texts(self) -> dict[str, str]:
        """Return the text of each plain file by its name."""
        return {str(each.relative_to(self.path)): each.read_text() for each in self.path.rglob("*") if each.is_file()}


@pytest.fixture
def namespaces(kernel: Kernel) -> None:
    """Skip where a writable mount is refused."""
    if not kernel.has_namespaces:
        pytest.skip("refused there: test_a_writable_mount_is_refused_without_namespaces")


def change(kernel: Kernel, project: Project, cases: dict[str, list[str]], **policy: Any) -> dict[str, str]:
    """Try the cases in a sandbox that may write to the project, and return the outcomes."""
    tried: dict[str, str] = kernel.attack(
        writing.change, project.cases(cases), **{"writable_mounts": [str(project.path)], **policy}
    )
    return tried


def control(kernel: Kernel, cases: dict[str, list[str]], files: tuple[str, ...] = FILES) -> dict[str, str]:
    """Try each case as the kernel's user, in a project of its own and without a sandbox."""
    outcomes: dict[str, str] = {}
    for name, case in cases.items():
        project = Project(kernel, "control", files)
        outcomes |= kernel.control(writing.change, project.cases({name: case}))
    return outcomes


@pytest.mark.usefixtures("namespaces")
def test_a_run_changes_the_files_of_its_writable_mount(kernel: Kernel) -> None:
    """New files belong to the kernel's user. A read-only mount refuses the same changes."""
    project = Project(kernel, "own")
    cases = {
        "write": ["write", "src/main.py"],
        "new file": ["write", "new.txt"],
        "new folders": ["make folders", "one/two"],
        "rename": ["rename", "src"],
        "link": ["link", "new.txt", "link"],
        "hard link": ["hard link", str(project.path / "new.txt"), "second name"],
        "execute": ["execute", "program"],
        "a folder like a setting, deeper": ["write", "src (renamed)/.vscode/tasks.json"],
    }

    read_only = change(kernel, project, cases, writable_mounts=[], readonly_mounts=[str(project.path)])
    before = project.texts()
    tried = change(kernel, project, cases)

    assert not any(map(has_succeeded, read_only.values())), read_only
    assert set(before) == set(FILES)
    assert_works(tried)
    after = project.texts()
    assert (after["new.txt"], after["src (renamed)/main.py"]) == ("planted", "planted")
    for each in (project.path / "new.txt", project.path / "one" / "two", project.path / "program"):
        assert each.stat().st_uid == project.path.stat().st_uid


@pytest.mark.usefixtures("namespaces")
def test_entries_that_programs_of_the_host_obey_stay_read_only(kernel: Kernel) -> None:
    """A guest changes no repository and no setting, also not by moving the folders around them."""
    project = Project(kernel, "obeyed")

    tried = change(kernel, project, OBEYED)

    assert_refused(tried, "EROFS", "EBUSY", "EXDEV", "EACCES", "EPERM")
    assert project.texts() == dict.fromkeys(FILES, "of the project")
    assert_works(control(kernel, OBEYED))


@pytest.mark.usefixtures("namespaces")
def test_a_folder_without_a_repository_gets_none(kernel: Kernel) -> None:
    """Nothing can be made at `.git` while a run may write there. Afterwards the folder is as before."""
    project = Project(kernel, "plain", ("file",))
    cases = {
        "config": ["make folders", ".git/hooks"],
        "file .git": ["write", ".git"],
        "in .git": ["write", ".git/config"],
        "remove .git": ["remove folder", ".git"],
        "rename .git": ["rename", ".git"],
        "replace .git": ["replace", "file", ".git"],
    }

    tried = change(kernel, project, cases)

    assert_refused(tried, "EROFS", "EBUSY", "EISDIR", "EXDEV", "ENOTDIR", "EEXIST")
    wait_until(lambda: project.names() == ["file"])
    made = control(kernel, {name: cases[name] for name in ("config", "file .git")}, ("file",))
    assert_works(made)


@pytest.mark.usefixtures("namespaces")
def test_two_runs_at_once_share_the_protection_of_a_folder_without_a_repository(kernel: Kernel) -> None:
    """The end of a child does not take the protection away from its parent."""
    project = Project(kernel, "shared", ("file",))
    policies = {"child": {"writable_mounts": [str(project.path)]}}
    cases = project.cases({"write": ["write", "from a child"]})

    outcomes = kernel.attack(writing.below, policies, cases, writable_mounts=[str(project.path)], **PARENT)
    tried = kernel.attack(
        writing.below_then_change, policies, cases, project.cases({"config": ["make folders", ".git/hooks"]}),
        writable_mounts=[str(project.path)], **PARENT,
    )  # fmt: skip

    assert_works(outcomes["child"])
    assert_refused(tried, "EROFS", "EEXIST")
    wait_until(lambda: project.names() == ["file", "from a child"])


@pytest.mark.usefixtures("namespaces")
def test_no_file_in_a_writable_mount_gets_the_rights_of_its_owner(kernel: Kernel) -> None:
    """A setuid program of the kernel's user would be one for every user of the machine."""
    project = Project(kernel, "modes")
    cases = {
        "setuid": ["setuid", "src/main.py"],
        "setgid": ["setgid", "src/main.py"],
        "create setuid": ["create setuid", "one"],
        "create setgid": ["create setgid", "two"],
        "node setuid": ["node setuid", "three"],
        "nameless setuid": ["nameless setuid", "src"],
    }

    tried = change(kernel, project, {**cases, "plain mode": ["chmod", "src/main.py"]})

    assert_works({"plain mode": tried.pop("plain mode")})
    assert_refused(tried, "EPERM")
    for each in project.path.rglob("*"):
        assert not each.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID), each
    assert_works(control(kernel, cases))


@pytest.mark.usefixtures("namespaces")
def test_a_guest_makes_no_device_pipe_or_socket_in_a_writable_mount(kernel: Kernel) -> None:
    """Programs of the host that read the folder would wait for a pipe."""
    project = Project(kernel, "special")
    cases = {"fifo": ["fifo", "fifo"], "device": ["device", "null"], "socket": ["bind", "socket"]}

    tried = change(kernel, project, cases)

    assert_refused(tried, "EPERM", "EACCES", "EAFNOSUPPORT")
    assert_works(control(kernel, {name: case for name, case in cases.items() if name != "device"}))


@pytest.mark.usefixtures("namespaces")
def test_links_in_a_writable_mount_lead_to_nothing_outside(kernel: Kernel) -> None:
    """Neither a link that a guest makes nor a hard link reaches a file of the host."""
    project = Project(kernel, "links")
    secret, key = str(kernel.secret), str(kernel.home / ".ssh" / "id_test")
    cases = {"link": ["link", secret, "out"], "folder": ["link", str(kernel.home), "home"]}
    assert_works(change(kernel, project, cases))

    written = change(kernel, project, {"write": ["write", "out"], "key": ["write", "home/.ssh/id_test"]})
    hard = change(kernel, project, {"program": ["hard link", "/usr/bin/env", "env"], "key": ["hard link", key, "k"]})
    read = kernel.attack(mounts.look_or_say, str(project.path / "out"), writable_mounts=[str(project.path)])

    assert_refused({**written, **hard})
    assert read in ("FileNotFoundError", "PermissionError")
    assert kernel.key.text in kernel.control(mounts.look, str(project.path / "out"))


@pytest.mark.usefixtures("namespaces")
def test_the_innermost_of_nested_mounts_decides(kernel: Kernel) -> None:
    """Read-only in writable stays read-only, also by moving what is around it. Writable in that is writable."""
    project = Project(kernel, "nested")
    deep, build = project.path / "vendor" / "deep", project.path / "vendor" / "build"
    inside = {
        "write": ["write", "vendor/deep/file"],
        "new": ["write", "vendor/deep/new"],
        "mode": ["chmod", "vendor/deep/file"],
        "move": ["move parent", "vendor/deep/file"],
        "move folder": ["rename", "vendor"],
    }

    tried = change(kernel, project, {**inside, "beside": ["write", "vendor/x"]}, readonly_mounts=[str(deep)])
    inner = change(
        kernel, project, {"outer": ["write", "src/main.py"], "inner": ["write", "vendor/build/file"]},
        writable_mounts=[str(build)], readonly_mounts=[str(project.path)],
    )  # fmt: skip

    assert_works({"beside": tried.pop("beside"), "inner": inner.pop("inner")})
    assert_refused({**tried, **inner}, "EROFS", "EBUSY", "EACCES", "EXDEV")
    assert (deep / "file").read_text() == "of the project"


def _asked(project: Project) -> dict[str, dict[str, Any]]:
    """Return policies of children with their names: what each is to get is in the name."""
    top = str(project.path)
    return {
        "inherits": {},
        "below": {"writable_mounts": [f"{top}/src"]},
        "read-only below": {"readonly_mounts": [f"{top}/src"], "writable_mounts": []},
        "the carve-out": {"writable_mounts": [f"{top}/vendor/deep"]},
        "below the carve-out": {"writable_mounts": [f"{top}/vendor/deep/one"]},
        "drops the carve-out": {"readonly_mounts": []},
        "more": {"writable_mounts": [str(project.path.parent)]},
        "through a link": {"writable_mounts": [f"{top}/out"]},
        "a repository": {"writable_mounts": [f"{top}/server.git/refs"]},
        "a file": {"writable_mounts": [f"{top}/src/main.py"]},
    }


@pytest.mark.usefixtures("namespaces")
def test_a_child_writes_only_where_its_parent_does(kernel: Kernel) -> None:
    """Refusals name the right and the path."""
    project = Project(kernel, "children")
    (project.path / "out").symlink_to(kernel.home / "work")
    project.give()
    cases = project.cases({"src": ["write", "src/main.py"], "vendor": ["write", "vendor/deep/file"]})

    outcomes = kernel.attack(
        writing.below, _asked(project), cases, writable_mounts=[str(project.path)],
        readonly_mounts=[str(project.path / "vendor" / "deep")], **PARENT,
    )  # fmt: skip

    for name in ("inherits", "below", "drops the carve-out"):
        assert has_succeeded(outcomes[name]["src"]), (name, outcomes[name])
    for name in ("inherits", "below", "read-only below", "drops the carve-out"):
        assert not has_succeeded(outcomes.pop(name)["vendor"]), name
    for name, each in outcomes.items():
        assert (each["error"], each["limit"]) == ("SpawnRefused", "policy.writable_mounts"), (name, each)
    assert "symbolic link" in outcomes["through a link"]["message"]
    assert "git repository" in outcomes["a repository"]["message"]


def test_a_folder_that_gives_rights_on_the_host_is_no_writable_mount(kernel: Kernel) -> None:
    """Homes, keys, repositories, ramet's own files, folders of other users and of modules: refused by name."""
    if not kernel.has_namespaces:
        pytest.skip("every writable mount is refused there")
    project, linked = Project(kernel, "refused"), Project(kernel, "linked", ("file",))
    (linked.path / ".git").symlink_to(project.path / ".git")
    (project.path / "like a home" / ".ssh").mkdir(parents=True)
    (kernel.base / "link to a home").unlink(missing_ok=True)
    (kernel.base / "link to a home").symlink_to(kernel.home)
    foreign = kernel.base / "projects" / "foreign"
    foreign.mkdir(exist_ok=True)
    project.give()
    refused = {
        kernel.home: "home folder",
        kernel.base: "home folder",
        kernel.home / ".ssh": "keys",
        kernel.base / "link to a home": "home folder",
        kernel.project: "searches it for modules",
        project.path / "server.git": "git repository",
        project.path / "server.git" / "refs": "git repository",
        project.path / "src" / "main.py": "no folder",
        linked.path: "symbolic link",
        project.path / "like a home": ".ssh",
        project.path / "missing": "No such file",
    }
    if os.geteuid() == 0:
        os.chown(foreign, 12345, 12345)
        refused[foreign] = "belongs to the user 12345"

    for path, reason in refused.items():
        result = kernel.run(writing.change, {}, writable_mounts=[str(path)])
        assert result["status"] == "failed", path
        assert result["error"]["type"] == "InvalidValue", (path, result["error"])
        for word in ("writable_mounts", str(path), reason):
            assert word in result["error"]["message"], (path, result["error"]["message"])
    assert kernel.attack(writing.change, {}, writable_mounts=[str(project.path)]) == {}


def test_a_writable_mount_is_refused_without_namespaces(kernel: Kernel) -> None:
    """Landlock keeps nothing in a writable folder read-only."""
    if kernel.has_namespaces:
        pytest.skip("not refused there")
    project = Project(kernel, "bare")

    result = kernel.run(writing.change, {}, writable_mounts=[str(project.path)])

    assert result["error"]["type"] == "InvalidValue"
    for word in ("writable_mounts", str(project.path), "namespaces"):
        assert word in result["error"]["message"]


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("method", ["start_zygote", "_assign"])
def test_a_folder_swapped_for_a_link_is_not_written_to(kernel: Kernel, method: str) -> None:
    """A folder that becomes a link after the check, or after the mounts of a zygote, leads to no key."""
    project = Project(kernel, f"swapped at {method}")
    folder = project.path / "folder"
    folder.mkdir()
    project.give()
    key = kernel.home / ".ssh" / "id_test"
    kernel.play("swap_for_link", path=str(folder), target=str(kernel.home / ".ssh"), method=method)

    result = kernel.run(
        writing.change, project.cases({"key": ["write", "folder/id_test"]}), writable_mounts=[str(folder)]
    )

    assert folder.is_symlink(), "the folder was not swapped in time"
    assert key.read_text() == f"hidden {kernel.key.text}"
    if method == "start_zygote" or kernel.backend != "bwrap":  # Otherwise the admitted folder is bound by then.
        assert result["status"] == "failed", result
        assert "writable_mounts" in result["error"]["message"], result["error"]
