"""Attacks 1 to 20 of the list: files of the host. A positive control makes the same attempt without a sandbox."""

from __future__ import annotations

import pathlib
import shutil
import stat
import subprocess
import sys
from typing import Any

import pytest

from ramet.core.errors import RametError
from tests.security.attacks import files, spawning
from tests.security.kit import Kernel, Raised, as_root, assert_refused, assert_works, has_succeeded


def test_01_a_secret_of_the_host_cannot_be_read(kernel: Kernel) -> None:
    """1: an agent cannot read files of the host that every user of the host may read."""
    paths = [
        kernel.secret,
        kernel.home / ".ssh" / "id_test",
        kernel.project / ".env",
        kernel.project / ".git" / "config",
    ]
    paths += [pathlib.Path("/proc/self/root") / kernel.secret.relative_to("/")]
    names = [str(path) for path in paths]

    assert_works(kernel.control(files.read, names))
    assert_refused(kernel.attack(files.read, names))


def test_01_an_agent_cannot_watch_a_hidden_folder(kernel: Kernel) -> None:
    """1: an agent cannot watch folders that it cannot list, neither the host's nor another run's."""
    agent = "tests.security.attacks.answers:write_and_wait"
    kernel.play("start", key="watched", agent=agent, args=["private words", 60, "watched.txt"])
    try:
        [workspace] = kernel.play("named", name="watched.txt")
        folders = [str(kernel.base / "scratch"), str(kernel.home / ".ssh"), str(kernel.project), workspace]

        assert_works(kernel.control(files.watch, folders))
        assert_refused(kernel.attack(files.watch, folders))
    finally:
        kernel.play("cancel", key="watched")


def test_01_a_program_can_still_follow_a_file(kernel: Kernel) -> None:
    """A program follows lines that are added to a file of its workspace."""
    assert kernel.attack(files.follow_a_file) == ["first\n", "second\n"]


def test_02_accounts_and_homes_are_hidden(kernel: Kernel) -> None:
    """2: an agent cannot read /etc/shadow, and a home shows at most the folders that lead to the interpreter."""
    control = as_root(files.read, ["/etc/shadow"])
    if control is not None:
        assert_works(control)
    assert_refused(
        kernel.attack(files.read, ["/etc/shadow", "/etc/gshadow", "/root/.bash_history", "/etc/ssh/sshd_config"])
    )

    homes = ["/root", "/home", str(kernel.home), str(kernel.base), str(kernel.home / "work")]
    assert kernel.control(files.list_folders, homes)[str(kernel.home)]
    seen = kernel.attack(files.list_folders, homes)
    import_paths = {
        pathlib.Path(path).resolve()
        for path in (*sys.path, sys.prefix, sys.base_prefix, kernel.package, *seen.pop("cwd"))
    }
    for folder, names in seen.items():
        here = pathlib.Path(folder).resolve()
        assert [name for name in names if not any(path.is_relative_to(here / name) for path in import_paths)] == [], (
            folder
        )


def test_04_an_agent_cannot_write_to_folders_of_the_system(kernel: Kernel) -> None:
    """4: an agent makes no file in a folder of the system, opens none for writing, and changes no mode."""
    import msgspec

    folders = [
        "/",
        "/usr",
        "/usr/bin",
        "/etc",
        "/dev",
        "/var",
        "/run",
        "/opt",
        sys.prefix,
        sys.base_prefix,
        str(kernel.base),
    ]
    targets = ["/usr/bin/env", "/etc/passwd", sys.executable, msgspec.__file__, subprocess.__file__]

    control = as_root(files.write_outside, ["/usr", "/etc", sys.base_prefix], [msgspec.__file__, subprocess.__file__])
    if control is not None:
        assert_works(control)
    tried = kernel.attack(files.write_outside, folders, targets)
    if not kernel.has_namespaces:  # Landlock knows no chmod of what is one's own
        tried = {name: outcome for name, outcome in tried.items() if not name.startswith("chmod")}
    assert_refused(tried)


def test_05_proc_gives_no_way_out_of_the_root(kernel: Kernel) -> None:
    """5: roots, working directories and descriptors in /proc do not lead to a secret of the host."""
    assert has_succeeded(kernel.control(files.read_through_proc, str(kernel.secret))["/proc/self/root"])
    assert_refused(kernel.attack(files.read_through_proc, str(kernel.secret)))


def test_06_links_to_the_host_are_not_followed_or_collected(kernel: Kernel) -> None:
    """6, AC-S0-11: neither the agent nor the host that collects artifacts follows a link in the workspace."""
    assert_works(kernel.control(files.link_to, str(kernel.secret), str(kernel.base)))

    result = kernel.run(files.link_to, str(kernel.secret), str(kernel.base))

    output = result["output"]
    if output is not None:  # a run may also be failed for what it left
        assert_refused({name: output[name] for name in ("read link", "read through folder")})
    assert not {"innocent.txt", "innocent", "deep/report.txt"} & {each["name"] for each in result["artifacts"]}
    for each in result["artifacts"]:
        assert kernel.key.text not in pathlib.Path(each["path"]).read_text()


def test_09_a_hard_link_to_a_file_outside_is_refused(kernel: Kernel) -> None:
    """9: an agent makes no hard link to a file outside. The host does not collect a file with two names."""
    assert_works(kernel.control(files.hard_link_to, str(kernel.secret)))

    result = kernel.run(files.hard_link_to, str(kernel.secret))

    assert_refused({"outside": result["output"]["outside"]})
    if has_succeeded(result["output"]["inside"]):
        assert not {"first.txt", "second.txt"} & {each["name"] for each in result["artifacts"]}


def test_11_an_agent_cannot_make_a_device(kernel: Kernel) -> None:
    """11: mknod of a disk, of memory and of a null device is refused."""
    control = as_root(files.make_devices)
    if control is not None:
        assert_works(control)
    assert_refused(kernel.attack(files.make_devices))


def test_12_a_setuid_file_gives_no_rights_and_loses_its_bits(kernel: Kernel) -> None:
    """12: a setuid program runs as the user that started it, or not at all. Artifacts have no setuid or setgid bits."""
    program = shutil.which("id")
    assert program is not None
    control = kernel.control(files.gain_by_setuid, program)
    assert (control["marked"], control["mode"], control["said"]) == ("done", "0o6755", str(control["uid"]))

    result = kernel.run(files.gain_by_setuid, program)

    assert result["output"]["said"] in {str(result["output"]["uid"]), "PermissionError", ""}
    for each in result["artifacts"]:
        assert pathlib.Path(each["path"]).stat().st_mode & (stat.S_ISUID | stat.S_ISGID) == 0


def test_13_the_host_obeys_no_configuration_in_a_workspace(kernel: Kernel) -> None:
    """13: the host runs no command from files of git, hooks or python in a workspace.

    The control shows that git would.
    """
    trap = kernel.base / "scratch" / "obeyed"
    command = f"touch {trap}"
    planted = pathlib.Path(kernel.base / "scratch" / "planted")
    planted.mkdir(exist_ok=True)
    subprocess.run(["git", "init", "--quiet", planted], check=True)
    (planted / ".git" / "config").write_text(f'[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "{command}"\n')
    subprocess.run(["git", "-C", planted, "status"], check=False, capture_output=True)
    assert trap.exists()
    trap.unlink()

    names = kernel.attack(files.plant_configuration, command)
    kernel.play("status")
    kernel.attack(files.read, ["/etc/hostname"])

    assert len(names) > 8
    assert not trap.exists()


@pytest.mark.parametrize(
    "path",
    ["relative/path", "../../etc", "~/.ssh", "/etc/../root", "", "/a\0b", "/" + "x/" * 5000, "/ends\udcff", "//", "."],
)
def test_14_a_mount_needs_a_plain_absolute_path(kernel: Kernel, path: str) -> None:
    """14: a mount path that is relative, odd or too long gives an error that names the field."""
    with pytest.raises(Raised) as raised:
        kernel.run(spawning.one, readonly_mounts=[path])

    assert raised.value.error["type"] == "InvalidValue"
    assert "readonly_mounts" in raised.value.error["field"]


def test_14_an_artifact_name_reads_no_file_of_the_host(kernel: Kernel) -> None:
    """14, 89: the host refuses hostile names of artifacts, and reads the child's own file."""
    names = ["report.txt", "../../../../../../" + str(kernel.secret), str(kernel.secret), "../report.txt", "a\0b"]
    names += ["./../.git/config", "report.txt/", "~/.ssh/id_test", "x/" * 5000, "", ".", "report.txt\n", "\ud800"]

    honest, *hostile = kernel.attack(spawning.reach_artifacts, names, allow_sub_agents=True)

    assert honest == {"error": None, "content": "left by a child"}
    assert [each for each in hostile if each["error"] is None] == []
    assert kernel.key.text not in str(hostile)


def test_14_a_mount_shows_only_its_folder_and_is_read_only(kernel: Kernel, tmp_path: pathlib.Path) -> None:
    """14: an agent can read a granted folder at its own path, and can neither write to it nor read a file beside it."""
    granted = kernel.base / "scratch" / "granted"
    granted.mkdir(exist_ok=True)
    (granted / "open.txt").write_text("for the agent")
    (granted / "leads-out").unlink(missing_ok=True)
    (granted / "leads-out").symlink_to(kernel.secret)
    policy: dict[str, Any] = {"readonly_mounts": [str(granted)]}

    seen = kernel.attack(
        files.read, [str(granted / "open.txt"), str(granted / "leads-out"), str(kernel.secret)], **policy
    )
    written = kernel.attack(files.write_outside, [str(granted)], [str(granted / "open.txt")], **policy)

    assert seen.pop(str(granted / "open.txt")) == "done: for the agent"
    assert_refused(seen)
    assert_refused(written)


def test_17_an_agent_cannot_open_a_file_by_handle(kernel: Kernel) -> None:
    """17: name_to_handle_at and open_by_handle_at are refused."""
    control = as_root(files.open_by_handle)
    if control is not None:
        assert_works(control)
    assert_refused(kernel.attack(files.open_by_handle), "EPERM", "ENOSYS")


def test_18_an_agent_cannot_change_mounts_or_its_root(kernel: Kernel) -> None:
    """18: mount, remount, umount, pivot_root, chroot and the newer calls are refused."""
    control = as_root(files.change_mounts)
    if control is not None:
        assert_works(control, "pivot_root")
    assert_refused(kernel.attack(files.change_mounts), "EPERM", "ENOSYS", "EACCES")


def test_20_the_host_lists_and_removes_an_odd_workspace(kernel: Kernel) -> None:
    """20: a workspace with odd names, flags, attributes and deep or closed folders does not stop the host."""
    assert_works(kernel.control(files.make_it_hard_to_delete, True), *PRIVILEGED)

    result = kernel.run(files.make_it_hard_to_delete)

    assert result["status"] in {"completed", "failed"}
    if result["status"] == "completed":
        assert_refused({name: result["output"][name] for name in PRIVILEGED}, "EPERM", "EACCES", "EOPNOTSUPP", "ENOTTY")
    assert kernel.attack(spawning.one) == 1


#: What only root may leave on a file; an agent of root's may not either.
PRIVILEGED = ("immutable", "append only", "trusted attribute", "capability")


def test_a_users_package_works_and_its_project_stays_hidden(kernel: Kernel) -> None:
    """1, rows 146, AC-S0-2: a function of a project in a closed home works.

    The agent cannot read the project's .env and .git.
    """
    result = kernel.run("work_package.work:triple", 14)
    assert (result["status"], result["output"]) == ("completed", 42)

    seen = kernel.run("work_package.work:look_around", str(kernel.project))["output"]

    assert {seen[".env"], seen[".git/config"]} <= {"FileNotFoundError", "PermissionError", "NotADirectoryError"}
    assert kernel.key.text not in str(seen)


def test_each_run_has_a_workspace_of_its_own(kernel: Kernel) -> None:
    """118, NEG-3: neither a concurrent run nor a later run sees a file that another run left."""
    from tests.security.attacks import answers

    agent = "tests.security.attacks.answers:write_and_wait"
    kernel.play("start", key="owner", agent=agent, args=["private words", 60, "owned.txt"])
    try:
        beside = kernel.attack(answers.look_for, "owned.txt")
        [workspace] = kernel.play("named", name="owned.txt")
        assert has_succeeded(kernel.control(files.look_at, [f"{workspace}/owned.txt"])[f"{workspace}/owned.txt"])
        if kernel.has_namespaces:  # Landlock does not hide that something is there
            assert_refused(kernel.attack(files.look_at, [workspace, f"{workspace}/owned.txt"]))
    finally:
        ended = kernel.play("cancel", key="owner")
    after = kernel.attack(answers.look_for, "owned.txt")

    assert (beside, after) == ([], [])
    assert ended["status"] == "cancelled"


def test_a_refused_policy_raises_a_ramet_error() -> None:
    """A policy with a wrong value raises a `RametError`, so that one handler catches each refusal."""
    import ramet

    with pytest.raises(RametError):
        ramet.Policy(readonly_mounts=("relative",))
