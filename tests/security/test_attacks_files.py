"""Attacks 1 to 20 of the list: files of the host. Each has its positive control: the same attempt without a sandbox."""

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
from tests.security.kit import Kernel, Raised, as_root, assert_refused, assert_works, worked


def test_01_a_secret_of_the_host_cannot_be_read(kernel: Kernel) -> None:
    """1: a file that everybody on the host may read is not there inside, wherever it lies."""
    paths = [
        kernel.secret,
        kernel.home / ".ssh" / "id_test",
        kernel.project / ".env",
        kernel.project / ".git" / "config",
    ]
    paths += [pathlib.Path("/proc/self/root") / kernel.secret.relative_to("/")]
    told = [str(path) for path in paths]

    assert_works(kernel.control(files.read, told))
    assert_refused(kernel.attack(files.read, told))


def test_01_folders_that_are_hidden_are_not_watched(kernel: Kernel) -> None:
    """1: no guest is told which files others make and use in a folder that it cannot list: the host's, or a run's."""
    agent = "tests.security.attacks.answers:write_and_wait"
    kernel.play("start", key="watched", agent=agent, args=["private words", 60, "watched.txt"])
    try:
        [workspace] = kernel.play("named", name="watched.txt")
        folders = [str(kernel.base / "scratch"), str(kernel.home / ".ssh"), str(kernel.project), workspace]

        assert_works(kernel.control(files.watch, folders))
        assert_refused(kernel.attack(files.watch, folders))
    finally:
        kernel.play("cancel", key="watched")


def test_01_programs_still_follow_a_file(kernel: Kernel) -> None:
    """A program that would watch a file of its workspace looks at it again and again where it may not watch."""
    assert kernel.attack(files.follow_a_file) == ["first\n", "second\n"]


def test_02_accounts_and_homes_are_not_seen(kernel: Kernel) -> None:
    """2: /etc/shadow is not readable; a home shows at most the way to the interpreter that runs here."""
    control = as_root(files.read, ["/etc/shadow"])
    if control is not None:
        assert_works(control)
    assert_refused(
        kernel.attack(files.read, ["/etc/shadow", "/etc/gshadow", "/root/.bash_history", "/etc/ssh/sshd_config"])
    )

    homes = ["/root", "/home", str(kernel.home), str(kernel.base), str(kernel.home / "work")]
    assert kernel.control(files.list_folders, homes)[str(kernel.home)]
    seen = kernel.attack(files.list_folders, homes)
    ways = {
        pathlib.Path(way).resolve()
        for way in (*sys.path, sys.prefix, sys.base_prefix, kernel.package, *seen.pop("cwd"))
    }
    for folder, names in seen.items():
        here = pathlib.Path(folder).resolve()
        assert [name for name in names if not any(way.is_relative_to(here / name) for way in ways)] == [], folder


def test_04_nothing_of_the_system_can_be_written(kernel: Kernel) -> None:
    """4: no file is made in a folder of the system, none is opened for writing, no mode is changed."""
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
        tried = {name: said for name, said in tried.items() if not name.startswith("chmod")}
    assert_refused(tried)


def test_05_proc_is_no_way_out_of_the_root(kernel: Kernel) -> None:
    """5: roots, working directories and descriptors in /proc lead to the own tree only."""
    assert worked(kernel.control(files.read_through_proc, str(kernel.secret))["/proc/self/root"])
    assert_refused(kernel.attack(files.read_through_proc, str(kernel.secret)))


def test_06_links_to_the_host_lead_nowhere_and_are_not_collected(kernel: Kernel) -> None:
    """6, AC-S0-11: a link in the workspace is not followed, inside or by the host that collects what was left."""
    assert_works(kernel.control(files.link_to, str(kernel.secret), str(kernel.base)))

    result = kernel.run(files.link_to, str(kernel.secret), str(kernel.base))

    said = result["output"]
    if said is not None:  # a run may also be failed for what it left
        assert_refused({name: said[name] for name in ("read link", "read through folder")})
    assert not {"innocent.txt", "innocent", "deep/report.txt"} & {each["name"] for each in result["artifacts"]}
    for each in result["artifacts"]:
        assert kernel.key.text not in pathlib.Path(each["path"]).read_text()


def test_09_hard_links_take_nothing_out_or_in(kernel: Kernel) -> None:
    """9: no second name for a file outside; what has two names inside is not collected."""
    assert_works(kernel.control(files.hard_link_to, str(kernel.secret)))

    result = kernel.run(files.hard_link_to, str(kernel.secret))

    assert_refused({"outside": result["output"]["outside"]})
    if worked(result["output"]["inside"]):
        assert not {"first.txt", "second.txt"} & {each["name"] for each in result["artifacts"]}


def test_11_no_device_can_be_made(kernel: Kernel) -> None:
    """11: mknod of a disk, of memory, of a null device."""
    control = as_root(files.make_devices)
    if control is not None:
        assert_works(control)
    assert_refused(kernel.attack(files.make_devices))


def test_12_a_setuid_file_gains_nothing_and_its_mode_stays_behind(kernel: Kernel) -> None:
    """12: a program marked setuid runs as who started it, or not at all; the host's copy has no such bits."""
    program = shutil.which("id")
    assert program is not None
    control = kernel.control(files.gain_by_setuid, program)
    assert (control["marked"], control["mode"], control["said"]) == ("done", "0o6755", str(control["uid"]))

    result = kernel.run(files.gain_by_setuid, program)

    assert result["output"]["said"] in {str(result["output"]["uid"]), "PermissionError", ""}
    for each in result["artifacts"]:
        assert pathlib.Path(each["path"]).stat().st_mode & (stat.S_ISUID | stat.S_ISGID) == 0


def test_13_configuration_left_in_a_workspace_is_never_obeyed(kernel: Kernel) -> None:
    """13: git's, the hooks', python's: the host reads none of it. The control shows that git would."""
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
def test_14_a_mount_is_given_by_a_plain_absolute_path(kernel: Kernel, path: str) -> None:
    """14: relative, climbing, ~, NUL, 5,000 components, not UTF-8: an error that names the field, before any bind."""
    with pytest.raises(Raised) as raised:
        kernel.run(spawning.one, readonly_mounts=[path])

    assert raised.value.told["type"] == "InvalidValue"
    assert "readonly_mounts" in raised.value.told["field"]


def test_14_a_guest_reads_no_file_of_the_host_by_an_artifacts_name(kernel: Kernel) -> None:
    """14, 89: climbing, absolute, NUL, endless names of artifacts are refused; the child's own file is read."""
    names = ["report.txt", "../../../../../../" + str(kernel.secret), str(kernel.secret), "../report.txt", "a\0b"]
    names += ["./../.git/config", "report.txt/", "~/.ssh/id_test", "x/" * 5000, "", ".", "report.txt\n", "\ud800"]

    honest, *hostile = kernel.attack(spawning.reach_artifacts, names, allow_sub_agents=True)

    assert honest == {"error": None, "content": "left by a child"}
    assert [each for each in hostile if each["error"] is None] == []
    assert kernel.key.text not in str(hostile)


def test_14_a_mount_shows_what_was_asked_for_and_is_read_only(kernel: Kernel, tmp_path: pathlib.Path) -> None:
    """14: a folder that was granted is there at its own path, and cannot be written; its neighbours are not there."""
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


def test_17_files_cannot_be_opened_by_handle(kernel: Kernel) -> None:
    """17: name_to_handle_at and open_by_handle_at."""
    control = as_root(files.open_by_handle)
    if control is not None:
        assert_works(control)
    assert_refused(kernel.attack(files.open_by_handle), "EPERM", "ENOSYS")


def test_18_mounts_and_root_stay_as_they_are(kernel: Kernel) -> None:
    """18: mount, remount, umount, pivot_root, chroot, and the newer calls for the same."""
    control = as_root(files.change_mounts)
    if control is not None:
        assert_works(control, "pivot_root")
    assert_refused(kernel.attack(files.change_mounts), "EPERM", "ENOSYS", "EACCES")


def test_20_whatever_a_workspace_holds_the_host_lists_and_removes_it(kernel: Kernel) -> None:
    """20: twins, flags, attributes, names that are no text, closed and endless folders: no crash, and it goes away."""
    assert_works(kernel.control(files.make_it_hard_to_delete, True), *PRIVILEGED)

    result = kernel.run(files.make_it_hard_to_delete)

    assert result["status"] in {"completed", "failed"}
    if result["status"] == "completed":
        assert_refused({name: result["output"][name] for name in PRIVILEGED}, "EPERM", "EACCES", "EOPNOTSUPP", "ENOTTY")
    assert kernel.attack(spawning.one) == 1


#: What only root may leave on a file; an agent of root's may not either.
PRIVILEGED = ("immutable", "append only", "trusted attribute", "capability")


def test_a_users_own_package_travels_and_nothing_beside_it(kernel: Kernel) -> None:
    """1, rows 146, AC-S0-2: a function of a project in a closed home works as it is; its .env and .git stay out."""
    result = kernel.run("work_package.work:triple", 14)
    assert (result["status"], result["output"]) == ("completed", 42)

    seen = kernel.run("work_package.work:look_around", str(kernel.project))["output"]

    assert {seen[".env"], seen[".git/config"]} <= {"FileNotFoundError", "PermissionError", "NotADirectoryError"}
    assert kernel.key.text not in str(seen)


def test_each_run_has_a_workspace_of_its_own(kernel: Kernel) -> None:
    """118, NEG-3: a file left by one run is not seen by the next, nor by one that runs beside it."""
    from tests.security.attacks import answers

    agent = "tests.security.attacks.answers:write_and_wait"
    kernel.play("start", key="owner", agent=agent, args=["private words", 60, "owned.txt"])
    try:
        beside = kernel.attack(answers.look_for, "owned.txt")
        [workspace] = kernel.play("named", name="owned.txt")
        assert worked(kernel.control(files.look_at, [f"{workspace}/owned.txt"])[f"{workspace}/owned.txt"])
        if kernel.has_namespaces:  # Landlock does not hide that something is there
            assert_refused(kernel.attack(files.look_at, [workspace, f"{workspace}/owned.txt"]))
    finally:
        ended = kernel.play("cancel", key="owner")
    after = kernel.attack(answers.look_for, "owned.txt")

    assert (beside, after) == ([], [])
    assert ended["status"] == "cancelled"


def test_a_refusal_is_an_error_of_ours() -> None:
    """What a policy refuses is a RametError, so that one handler takes them all."""
    import ramet

    with pytest.raises(RametError):
        ramet.Policy(readonly_mounts=("relative",))
