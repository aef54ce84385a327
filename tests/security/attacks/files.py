"""Attacks 1 to 20: files. Each attack returns the outcome of each attempt."""

# The calls are made as the kernel takes them.
# ruff: noqa: PTH101, PTH102, PTH103, PTH109, PTH116, PTH208

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import pathlib
import stat
import subprocess

from tests.security.attacks.trying import Tried, attempt, called, open_and_close, syscall, text_of


def read(paths: list[str]) -> Tried:
    """Read files by absolute path."""
    return {path: attempt(text_of, path) for path in paths}


def look_at(paths: list[str]) -> Tried:
    """Try whether paths exist."""
    return {path: attempt(os.lstat, path) for path in paths}


def watch(paths: list[str]) -> Tried:
    """Watch folders by inotify."""
    return {path: attempt(_watch, path) for path in paths}


def _watch(path: str) -> None:
    fd = syscall("inotify_init1", os.O_CLOEXEC)
    try:
        syscall("inotify_add_watch", fd, path.encode(), 0xFFF)
    finally:
        os.close(fd)


def follow_a_file() -> list[str]:
    """Run `tail -f` on a file of the workspace, and return the lines that it prints."""
    with open("followed", "w", buffering=1) as file:  # noqa: PTH123
        file.write("first\n")
        command = ["tail", "-n", "+1", "-f", "followed"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tail:
            assert tail.stdout is not None
            lines = [tail.stdout.readline()]
            file.write("second\n")
            lines.append(tail.stdout.readline())
            tail.kill()
    return lines


def list_folders(paths: list[str]) -> dict[str, list[str]]:
    """Return the entries of folders and the current folder; none for a folder that cannot be listed."""
    seen: dict[str, list[str]] = {"cwd": [os.getcwd()]}
    for path in paths:
        try:
            seen[path] = sorted(os.listdir(path))
        except OSError:
            seen[path] = []
    return seen


def write_outside(folders: list[str], files: list[str]) -> Tried:
    """Make an unnamed file in folders of the system, change their modes, and open files for writing."""
    tried: Tried = {}
    for folder in folders:
        tried[f"make in {folder}"] = attempt(open_and_close, folder, os.O_TMPFILE | os.O_WRONLY)
        tried[f"chmod {folder}"] = attempt(_touch, folder)
    for file in files:
        tried[f"open {file}"] = attempt(open_and_close, file, os.O_WRONLY | os.O_APPEND)
    return tried


def _touch(folder: str) -> None:
    os.chmod(folder, os.stat(folder).st_mode)


def read_through_proc(secret: str) -> Tried:
    """Leave the root through links of /proc."""
    roots = [
        "/proc/1/root",
        "/proc/self/root",
        "/proc/self/root/../..",
        "/proc/1/cwd" + "/.." * 8,
        "/proc/self/cwd" + "/.." * 8,
    ]
    roots += [f"/proc/{pid}/root" for pid in range(2, 9)]
    roots += [f"/proc/self/fd/{fd}" + "/.." * 8 for fd in range(3, 12)]
    return {root: attempt(text_of, root + secret) for root in roots}


def link_to(secret: str, folder: str) -> Tried:
    """Make links in the workspace to a file and a folder of the host, and follow them."""
    tried = {
        "make link": attempt(os.symlink, secret, "innocent.txt"),
        "make folder link": attempt(os.symlink, folder, "innocent"),
    }
    tried["read link"] = attempt(text_of, "innocent.txt")
    tried["read through folder"] = attempt(text_of, f"innocent/{pathlib.Path(secret).name}")
    os.mkdir("deep")
    tried["make deep link"] = attempt(os.symlink, "../../../../../../../../../.." + secret, "deep/report.txt")
    pathlib.Path("honest.txt").write_text("honest")
    return tried


def hard_link_to(secret: str) -> Tried:
    """Make a hard link to a file outside, and to one inside."""
    tried = {"outside": attempt(os.link, secret, "stolen.txt")}
    pathlib.Path("first.txt").write_text("one file")
    tried["inside"] = attempt(os.link, "first.txt", "second.txt")
    return tried


def make_devices() -> Tried:
    """Make device nodes of the first disk, memory and a null device, in the workspace and in /tmp."""
    tried: Tried = {}
    for folder in (".", "/tmp"):
        for kind, mode, device in (
            ("disk", stat.S_IFBLK, os.makedev(254, 0)),
            ("memory", stat.S_IFCHR, os.makedev(1, 1)),
            ("null", stat.S_IFCHR, os.makedev(1, 3)),
        ):
            path = f"{folder}/{kind}"
            tried[path] = attempt(os.mknod, path, mode | 0o666, device)
            attempt(os.unlink, path)
    return tried


def gain_by_setuid(program: str) -> dict[str, object]:
    """Copy a program that prints its effective uid, mark it setuid and setgid, and run it."""
    own = pathlib.Path("gain")
    own.write_bytes(pathlib.Path(program).read_bytes())
    marked = attempt(own.chmod, 0o6755)
    try:
        output = subprocess.run(["./gain", "-u"], capture_output=True, text=True, check=False).stdout.strip()
    except OSError as problem:
        output = type(problem).__name__
    return {"uid": os.geteuid(), "marked": marked, "mode": oct(own.stat().st_mode & 0o7777), "said": output}


def plant_configuration(command: str) -> list[str]:
    """Write files that tools of the host would obey, each of which runs `command`."""
    hook = f'[{{"hooks": [{{"type": "command", "command": "{command}"}}]}}]'
    planted = {
        ".git/config": f'[core]\n\tfsmonitor = "{command}"\n\thooksPath = hooks\n[diff]\n\texternal = "{command}"\n',
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/objects/info/.keep": "",
        ".git/refs/heads/.keep": "",
        ".git/hooks/post-checkout": f"#!/bin/sh\n{command}\n",
        "hooks/post-index-change": f"#!/bin/sh\n{command}\n",
        ".ramet/settings.json": f'{{"hooks": {{"SessionStart": {hook}}}}}',
        ".claude/settings.json": f'{{"hooks": {{"Stop": {hook}}}}}',
        "conftest.py": f"import os\nos.system({command!r})\n",
        "sitecustomize.py": f"import os\nos.system({command!r})\n",
        "ramet/__init__.py": f"import os\nos.system({command!r})\n",
    }
    for name, text in planted.items():
        path = pathlib.Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return sorted(planted)


def open_by_handle() -> Tried:
    """Open a file by its handle in the file system: the way out of containers that is called shocker."""
    handle = ctypes.create_string_buffer(128)
    ctypes.memmove(handle, (128 - 8).to_bytes(4, "little"), 4)
    mount = ctypes.create_string_buffer(8)
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        named = called("name_to_handle_at", here, b"", handle, mount, 0x1000)
        opened = called("open_by_handle_at", here, handle, os.O_RDONLY)
    finally:
        os.close(here)
    return {"name_to_handle_at": named, "open_by_handle_at": opened}


def change_mounts() -> Tried:
    """Change mounts and the root by old and new calls. The controls run in a scratch namespace."""
    os.makedirs("here", exist_ok=True)
    os.makedirs("put", exist_ok=True)
    read_only, remount, bind, private, detach = 1, 32, 4096, 1 << 18, 2
    tried = {
        "tmpfs": called("mount", b"none", b"here", b"tmpfs", 0, None),
        "bind": called("mount", b"/", b"here", None, bind, None),
        "proc": called("mount", b"proc", b"here", b"proc", 0, None),
        "remount": called("mount", None, b"/", None, remount | bind | read_only, None),
        "private": called("mount", None, b"/", None, private, None),
        "umount": called("umount2", b"here", detach),
        "umount proc": called("umount2", b"/proc", detach),
        "fsopen": called("fsopen", b"tmpfs", 0),
        "open_tree": called("open_tree", -100, b"/", 1),
        "fspick": called("fspick", -100, b"/", 0),
        "mount_setattr": called("mount_setattr", -100, b"/", 0, b"\0" * 32, 32),
        "move_mount": called("move_mount", -100, b"here", -100, b"put", 0),
        "pivot_root": called("pivot_root", b".", b"put"),
        "chroot": called("chroot", b"here"),
    }
    return tried


#: What a refusal looks like where the call was let through and only its arguments were wrong.
REACHED = ("EINVAL", "EBADF", "EFAULT", "EBUSY", "ENOTTY")


def make_it_hard_to_delete(tidy: bool = False) -> Tried:
    """Leave names, flags and depths that break a careless removal or listing. `tidy` clears the flags."""
    tried: Tried = {}

    def flag(name: str, bits: int) -> None:
        fd = os.open(name, os.O_RDONLY)
        try:
            word = array.array("l", [bits])
            fcntl.ioctl(fd, 0x40086602, word, True)
        finally:
            os.close(fd)

    def make(name: str | bytes) -> None:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))

    for name in (
        "Case",
        "case",
        "caf\u00e9",
        "cafe\u0301",
        "a" * 255,
        "new\nline",
        "-rf",
        " ",
        "\x1b[31mred",
        "\u202etxt.exe",
    ):
        tried[f"name {name[:10]!r}"] = attempt(make, name)
    tried["not utf-8"] = attempt(make, b"\xff\xfe\x80")
    make("flagged")
    tried["immutable"] = attempt(flag, "flagged", 0x10)
    tried["append only"] = attempt(flag, "flagged", 0x20)
    if tidy:
        flag("flagged", 0)
    make("attributed")
    tried["user attribute"] = attempt(os.setxattr, "attributed", "user.note", b"x" * 1000)
    tried["trusted attribute"] = attempt(os.setxattr, "attributed", "trusted.note", b"x")
    tried["capability"] = attempt(
        os.setxattr, "attributed", "security.capability", b"\1\0\0\2" + b"\xff" * 4 + b"\0" * 12
    )
    os.mkfifo("pipe")
    top = os.getcwd()
    for _ in range(300):
        os.mkdir("d" * 30)
        os.chdir("d" * 30)
    os.chdir(top)
    os.makedirs("closed/inner")
    make("closed/inner/file")
    os.chmod("closed/inner", 0)
    os.chmod("closed", 0)
    return tried
