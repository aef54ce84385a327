"""Mounts of a child stay below its parent's: symbolic links on the way to them are refused, also later ones."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

from tests.security.attacks import mounts
from tests.security.kit import Kernel

PARENT: dict[str, Any] = {"allow_sub_agents": True, "memory_mb": 400, "max_sub_agents": 50, "timeout_seconds": 50}

#: Some of what a kernel keeps in its state folder, and nobody else is to see.
PRIVATE = ("journal.db", "operator-token", "serve.sock", "transcripts/one", "runs/one/workspace/file")


class Scene:
    """Repository that its operator grants, with links to files that no agent was granted."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.repo = kernel.base / "repo"
        self.state = kernel.home / "work" / ".ramet"
        if self.repo.exists():
            return
        (self.repo / "sub" / "deep").mkdir(parents=True)
        (self.repo / "own.txt").write_text("of the repository")
        (self.repo / "sub" / "deep" / "file.txt").write_text("of the subfolder")
        for name, target in self.links.items():
            (self.repo / name).parent.mkdir(parents=True, exist_ok=True)
            (self.repo / name).symlink_to(target)
        self._give_to_the_kernel(self.repo)

    @property
    def links(self) -> dict[str, str]:
        """Return the links of the repository, by name, and their targets."""
        home = self.kernel.home
        return {
            "file": str(self.kernel.secret),
            "folder": str(home / ".ssh"),
            "home": str(home),
            "relative": "../home/.ssh",
            "chain": "relative",
            "sub/deep/up": "../../../secret.txt",
            "shadow": "/etc/shadow",
            "journal": str(self.state / "journal.db"),
            "runs": str(self.state / "runs"),
            "transcripts": str(self.state / "transcripts"),
            "inner": "sub",
        }

    @property
    def below_links(self) -> dict[str, tuple[str, str]]:
        """Return mounts that lead through a link, and the path to read there, by name."""
        names = {name: (name, name) for name in ("file", "shadow", "journal", "runs", "transcripts", "sub/deep/up")}
        key = {name: (name, f"{name}/id_test") for name in ("folder", "relative", "chain")}
        middle = {"middle folder": ("home/.ssh", "home/.ssh/id_test"), "middle file": ("home/.ssh/id_test",) * 2}
        return {**names, **key, **middle, "inside": ("inner/deep", "inner/deep/file.txt")}

    def cases(self) -> dict[str, dict[str, Any]]:
        """Return the cases of these mounts for `attacks.mounts.ask`."""
        return {
            name: {"mounts": [str(self.repo / mount)], "path": str(self.repo / path)}
            for name, (mount, path) in self.below_links.items()
        }

    def other_kernel(self, *parts: str) -> pathlib.Path:
        """Return the state folder of another kernel, in a folder beside the repository."""
        state = self.kernel.base.joinpath("others", *parts, ".ramet")
        if not state.exists():
            for name in (*PRIVATE, "skills/note", "worktrees/one/file"):
                (state / name).parent.mkdir(parents=True, exist_ok=True)
                (state / name).write_text(f"kept in {name}")
            self._give_to_the_kernel(self.kernel.base / "others")
        return state

    def _give_to_the_kernel(self, folder: pathlib.Path) -> None:
        if os.geteuid() == 0 and self.kernel.uid:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self.kernel.uid, self.kernel.uid, follow_symlinks=False)


@pytest.fixture
def scene(kernel: Kernel) -> Scene:
    """Make the repository of one kernel."""
    return Scene(kernel)


def assert_refused_by_name(outcome: dict[str, Any], name: str, path: str) -> None:
    """Assert that a spawn was refused, and that the error names the right, the path and the symbolic link."""
    assert (outcome["error"], outcome.get("limit")) == ("SpawnRefused", "policy.readonly_mounts"), (name, outcome)
    assert path in outcome["message"], (name, outcome)
    assert "symbolic link" in outcome["message"], (name, outcome)


def test_a_child_mount_through_a_symbolic_link_is_refused(kernel: Kernel, scene: Scene) -> None:
    """Issue 16, line 1: a child's mount through a link is refused, also where the link leads inside of the grant."""
    assert kernel.key.text in kernel.control(mounts.look, str(scene.repo / "folder" / "id_test"))

    outcomes = kernel.attack(mounts.ask, scene.cases(), readonly_mounts=[str(scene.repo)], **PARENT)

    assert set(outcomes) == set(scene.below_links)
    leaked = {name: str(each["output"])[:60] for name, each in outcomes.items() if each.get("output")}
    assert leaked == {}
    for name, each in outcomes.items():
        assert_refused_by_name(each, name, str(scene.repo / scene.below_links[name][0]))


def test_a_grandchild_mount_through_a_symbolic_link_is_refused(kernel: Kernel, scene: Scene) -> None:
    """Issue 16, line 1: a grandchild's mount through a link is refused, below a mount that its parent asked for."""
    link = str(scene.repo / "sub" / "deep" / "up")
    case = {"up": {"mounts": [link], "path": link}}

    outcomes = kernel.attack(
        mounts.ask_below, [str(scene.repo / "sub")], case, readonly_mounts=[str(scene.repo)], **PARENT
    )

    assert not outcomes["up"].get("output"), outcomes
    assert_refused_by_name(outcomes["up"], "up", link)


def ask_for_swapped_mount(kernel: Kernel, scene: Scene, method: str) -> dict[str, Any]:
    """Spawn a child whose mount becomes a link to keys when its backend calls `method`. Return the result."""
    folder = scene.repo / f"swapped at {method}"
    folder.mkdir()
    (folder / "id_test").write_text("honest")
    case = {"swapped": {"mounts": [str(folder)], "path": str(folder / "id_test")}}
    kernel.play("swap_for_link", path=str(folder), target=str(kernel.home / ".ssh"), method=method)

    outcome = kernel.attack(mounts.ask, case, readonly_mounts=[str(scene.repo)], **PARENT)["swapped"]

    assert folder.is_symlink(), "the folder was not swapped in time"
    assert kernel.key.text in kernel.control(mounts.look, str(folder / "id_test"))
    return {**outcome, "path": str(folder)}


def test_a_folder_swapped_for_a_link_before_it_is_bound_is_refused(kernel: Kernel, scene: Scene) -> None:
    """Issue 16, line 1: a folder that becomes a link after the admission, before the mounts are made, is refused."""
    outcome = ask_for_swapped_mount(kernel, scene, "start_zygote")

    assert kernel.key.text not in str(outcome)
    assert outcome["output"] is None
    for word in ("readonly_mounts", outcome["path"], "symbolic link"):
        assert word in outcome["message"], outcome


def test_a_folder_swapped_for_a_link_before_its_rule_is_made_is_refused(kernel: Kernel, scene: Scene) -> None:
    """Issue 16, line 1: a folder that becomes a link before its Landlock rule is made is refused."""
    if kernel.backend == "bwrap":
        pytest.skip("the folder is bound by then, and the child sees the one that was admitted")
    outcome = ask_for_swapped_mount(kernel, scene, "_assign")

    assert kernel.key.text not in str(outcome)
    assert outcome["output"] is None
    for word in ("readonly_mounts", outcome["path"], "symbolic link"):
        assert word in outcome["message"], outcome


def test_a_child_mount_of_the_kernels_own_files_is_refused(kernel: Kernel, scene: Scene) -> None:
    """Issue 16, line 1: a child cannot mount the kernel's journal, transcripts and runs below its parent's mount."""
    names = ("journal.db", "runs", "transcripts")
    cases = {name: {"mounts": [str(scene.state / name)], "path": str(scene.state / name)} for name in names}

    outcomes = kernel.attack(mounts.ask, cases, readonly_mounts=[str(kernel.home / "work")], **PARENT)

    for name, each in outcomes.items():
        assert (each["error"], each.get("limit")) == ("SpawnRefused", "policy.readonly_mounts"), (name, each)
        assert str(scene.state / name) in each["message"], each


def test_a_child_can_read_a_mount_below_its_parents(kernel: Kernel, scene: Scene) -> None:
    """Issue 16, line 1: a child and a grandchild can read a folder and a file without links on the way."""
    file = str(scene.repo / "sub" / "deep" / "file.txt")
    cases = {
        "folder": {"mounts": [str(scene.repo / "sub")], "path": file},
        "file": {"mounts": [file], "path": file},
        "both": {"mounts": [str(scene.repo / "sub" / "deep"), str(scene.repo / "own.txt")], "path": file},
    }

    outcomes = kernel.attack(mounts.ask, cases, readonly_mounts=[str(scene.repo)], **PARENT)
    below = kernel.attack(
        mounts.ask_below, [str(scene.repo / "sub")], {"deep": {"mounts": [file], "path": file}},
        readonly_mounts=[str(scene.repo)], **PARENT
    )  # fmt: skip

    assert {name: each["output"] for name, each in {**outcomes, **below}.items()} == dict.fromkeys(
        ("folder", "file", "both", "deep"), "of the subfolder"
    )


def test_a_link_granted_by_the_operator_is_followed_once(kernel: Kernel, scene: Scene) -> None:
    """Issue 16, line 1: a granted link is readable at its own path, also for a child. A link below it is refused."""
    granted = kernel.base / "granted"
    if not granted.is_symlink():
        granted.symlink_to("repo")
    file, through = str(granted / "sub" / "deep" / "file.txt"), str(granted / "folder")
    cases = {
        "the same": {"mounts": [str(granted)], "path": file},
        "below": {"mounts": [str(granted / "sub")], "path": file},
        "through a link": {"mounts": [through], "path": f"{through}/id_test"},
    }

    own = kernel.attack(mounts.look, file, readonly_mounts=[str(granted)])
    outcomes = kernel.attack(mounts.ask, cases, readonly_mounts=[str(granted)], **PARENT)

    assert own == outcomes["the same"]["output"] == outcomes["below"]["output"] == "of the subfolder"
    assert_refused_by_name(outcomes["through a link"], "through a link", through)


def test_a_link_in_a_mount_shows_no_file_of_the_host(kernel: Kernel, scene: Scene) -> None:
    """Issue 16, line 1: a guest reads no file outside of a mount through a link in it. It can follow a link inside."""
    for name in ("file", "folder/id_test", "home/.ssh/id_test", "shadow", "journal"):
        output = kernel.attack(mounts.look_or_say, str(scene.repo / name), readonly_mounts=[str(scene.repo)])
        assert output in ("FileNotFoundError", "PermissionError"), (name, output)
    inner = str(scene.repo / "inner" / "deep" / "file.txt")
    assert kernel.attack(mounts.look_or_say, inner, readonly_mounts=[str(scene.repo)]) == "of the subfolder"


@pytest.mark.parametrize("target", ["/proc/self", "/sys", "/run", "/"])
def test_an_operators_link_to_a_system_folder_is_refused(kernel: Kernel, scene: Scene, target: str) -> None:
    """Issue 16, line 1: a granted link to /proc/self, /sys, /run or / is refused, since the real path decides."""
    link = kernel.base / f"link to {target.strip('/').replace('/', ' ')}"
    if not link.is_symlink():
        link.symlink_to(target)

    result = kernel.run(mounts.look_or_say, str(link), readonly_mounts=[str(link)])

    assert result["status"] == "failed"
    assert result["error"]["type"] == "InvalidValue"
    for word in ("readonly_mounts", str(link), "a sandbox has its own"):
        assert word in result["error"]["message"]


@pytest.mark.parametrize("through", ["its own path", "a link"])
def test_a_mount_around_the_kernels_folder_hides_private_files(kernel: Kernel, scene: Scene, through: str) -> None:
    """Issue 16, line 1: a mount hides the journal, transcripts and other runs' folders.

    The project's own files are shown.
    """
    if not kernel.has_namespaces:
        pytest.skip("without namespaces nothing below a granted folder can be hidden")
    work = scene.state.parent
    if through == "a link":
        work = kernel.base / "link to work"
        if not work.is_symlink():
            work.symlink_to("home/work")
    (scene.state / "skills").mkdir(exist_ok=True)
    (scene.state / "skills" / "note").write_text("of the project")
    if not (scene.state / "stolen").is_symlink():
        (scene.state / "stolen").symlink_to(kernel.home / ".ssh")
    names = ("journal.db", "journal.db-wal", "transcripts", "stolen/id_test")

    outputs = {
        name: kernel.attack(mounts.look_or_say, str(work / ".ramet" / name), readonly_mounts=[str(work)])
        for name in (*names, "runs", "skills/note")
    }

    assert outputs.pop("skills/note") == "of the project"
    assert len(outputs.pop("runs").split()) <= 1, "only its own folder, or none"
    assert outputs == dict.fromkeys(names, "FileNotFoundError")


def test_a_mount_around_other_kernels_folders_hides_private_files(kernel: Kernel, scene: Scene) -> None:
    """A mount hides private files of other kernels, at any depth, and of a kernel that began after the last run."""
    if not kernel.has_namespaces:
        pytest.skip("without namespaces nothing below a granted folder can be hidden")
    near = scene.other_kernel("near")
    states = [near, scene.other_kernel("near", ".ramet", "worktrees", "one"), scene.other_kernel("far", "below")]
    mount = str(kernel.base / "others")
    public = {
        str(state / name): f"kept in {name}" for state in states for name in ("skills/note", "worktrees/one/file")
    }
    paths = [str(state / name) for state in states for name in PRIVATE]
    assert all(text.startswith("kept in") for text in kernel.control(mounts.look_at_each, paths).values())

    outputs = kernel.attack(mounts.look_at_each, [*paths, *public], readonly_mounts=[mount])
    late = str(scene.other_kernel("late") / "journal.db")
    outputs |= kernel.attack(mounts.look_at_each, [late], readonly_mounts=[mount])

    assert outputs == {**dict.fromkeys((*paths, late), "FileNotFoundError"), **public}


def test_a_mount_of_another_kernels_files_is_refused(kernel: Kernel, scene: Scene) -> None:
    """A mount of another kernel's private files is refused, for a child and for an operator, also behind a link."""
    state = scene.other_kernel("near")
    cases = {name: {"mounts": [str(state / name)], "path": str(state / name)} for name in (*PRIVATE, "")}
    link = kernel.base / "link to a journal"
    if not link.is_symlink():
        link.symlink_to(state / "journal.db")

    below = kernel.attack(mounts.ask, cases, readonly_mounts=[str(kernel.base / "others")], **PARENT)
    own = kernel.run(mounts.look_or_say, str(link), readonly_mounts=[str(link)])

    for name, each in below.items():
        assert (each["error"], each.get("limit")) == ("SpawnRefused", "policy.readonly_mounts"), (name, each)
    assert own["error"]["type"] == "InvalidValue"
    for word in ("readonly_mounts", str(link), "private to a kernel"):
        assert word in own["error"]["message"]
