"""A folder in which real shells run commands, and whose program `rm` leaves a mark instead of removing a file."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

PROGRAMS = ("bash", "sh", "env", "cat", "timeout", "xargs", "find", "sed", "tar", "git", "touch", "mkdir", "nice")
#: What commands find in the folder: a text that starts `rm`, and a subscript that starts `rm`.
FILES = {"x": "$(rm x)\n", "y": "b[$(rm x)]\n"}


class MarkedProgram:
    """A runner of commands, each with its own mark, so that a late start counts for its own command."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._marks = folder / "work", folder / "marks"
        self._commands: list[str] = []
        bin = self._folder / "bin"
        bin.mkdir(parents=True)
        self._marks.mkdir()
        (bin / "rm").write_text('#!/bin/bash\n: >>"$MARK"\n')
        (bin / "rm").chmod(0o755)
        for name in PROGRAMS:
            (bin / name).symlink_to(shutil.which(name) or "/nonexistent")

    @property
    def cwd(self) -> str:
        """The folder in which commands run."""
        return os.fspath(self._folder)

    def run(self, command: str) -> None:
        """Run a command with bash, as the tool Bash does, for at most five seconds of CPU time."""
        self._refill()
        mark = self._marks / str(len(self._commands))
        self._commands.append(command)
        subprocess.run(
            ["/bin/bash", "-c", 'ulimit -t 5; exec /bin/bash --noprofile --norc -c "$0"', command],
            cwd=self._folder,
            env={"PATH": os.fspath(self._folder / "bin"), "MARK": os.fspath(mark)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=180,
        )

    def started(self) -> list[str]:
        """Return the commands that have started `rm`."""
        return [self._commands[each] for each in sorted(int(mark.name) for mark in self._marks.iterdir())]

    def _refill(self) -> None:
        """Bring the folder into its first state."""
        for each in self._folder.iterdir():
            if each.name == "bin":
                continue
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()
        for name, content in FILES.items():
            (self._folder / name).write_text(content)
