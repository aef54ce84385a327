"""Take one layer away at a time and see which attacks then succeed: `python -m tests.security.mutants [LAYER…]`.

Works on a copy of the source with an environment of its own; the project is not touched. Prints a table of layer and
failing tests, for docs/security.md, and ends with 1 if a layer can go without anybody noticing, or is not found.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

PROJECT = pathlib.Path(__file__).resolve().parents[2]
TESTS = PROJECT / "tests" / "security"
ME, ORDINARY, LOCAL, BARE = "me-bwrap", "ordinary-bwrap", "me-local", "bare-local"
#: Of tests that are named, before "and … more".
SHOWN = 3
#: Failures that are enough.
ENOUGH = 8


class Edit(NamedTuple):
    """Words that occur once in a file, and what is put instead."""

    file: str
    words: str
    instead: str


class Mutant(NamedTuple):
    """A layer, and the words whose change takes it away: they occur once in their file."""

    layer: str
    file: str
    words: str
    instead: str
    kernel: str = ME
    tests: tuple[str, ...] = ("files", "processes", "network", "resources")
    also: tuple[Edit, ...] = ()  #: what else must go, where one layer makes sure of another


LINUX, CHILD, CONFINE = "isolation/linux", "isolation/child.py", "isolation/confine.py"
CHANNEL, SPAWNING, ANSWERS, LIVING = ("channel",), ("spawning",), ("answers", "files"), ("living",)
FILES, PROCESSES, NETWORK, RESOURCES = ("files",), ("processes",), ("network",), ("resources",)

MUTANTS = (
    # ---- the gates of a process
    Mutant("seccomp", CONFINE, "        if self.programs:\n", "        if False:\n"),
    Mutant("seccomp: namespace flags of clone", f"{LINUX}/seccomp.py",
           "*_argument(0, _NEW_NAMESPACE), *_only((0,), deny)",
           "*_return(_ALLOW)", tests=PROCESSES),
    Mutant("seccomp: clone3 unknown", f"{LINUX}/seccomp.py", 'number["clone3"], _return(_ERRNO | errno.ENOSYS)',
           'number["clone3"], _return(_ALLOW)', tests=PROCESSES),
    Mutant("seccomp: families of sockets", f"{LINUX}/seccomp.py", '_sockets(inet, unix, no_family))',
           "_return(_ALLOW))", tests=NETWORK),
    Mutant("seccomp: terminals", f"{LINUX}/seccomp.py", "*_argument(1), *_none_of(_IOCTLS.values(), deny)",
           "*_return(_ALLOW)", tests=PROCESSES),
    Mutant("seccomp: foreign ABI", f"{LINUX}/seccomp.py", "(_RETURN, 0, 0, _KILL),\n        (_LOAD, 0, 0, _NR)",
           "(_RETURN, 0, 0, _ALLOW),\n        (_LOAD, 0, 0, _NR)", tests=PROCESSES),
    Mutant("Landlock", CONFINE, "            rules.enforce()\n", "", BARE),
    Mutant("Landlock: scopes", f"{LINUX}/landlock.py", "_ABSTRACT_SOCKETS | _SIGNALS if self._kept.scopes else 0", "0",
           BARE, ("processes", "network")),
    Mutant("capabilities", CONFINE, "        caps.drop_all()\n", "", tests=PROCESSES),
    # Bubblewrap sets it by itself.
    Mutant("no_new_privs", CONFINE, "        calls.set_no_new_privs()\n", "", LOCAL, PROCESSES),
    Mutant("user namespace", CONFINE, "            calls.unshare(calls.CLONE_NEWUSER)\n            ids.map_ids",
           "            (lambda *_: None)", tests=("processes", "resources")),
    Mutant("rlimit: processes", CONFINE, "            nproc=nproc,\n", "", ORDINARY, RESOURCES),
    Mutant("rlimit: descriptors", CONFINE, "            nofile=_NOFILE,\n", "", tests=RESOURCES),
    Mutant("rlimit: core files", f"{LINUX}/rlimits.py", "        (resource.RLIMIT_CORE, core),\n", "", tests=PROCESSES),
    Mutant("descriptors closed", CHILD, "    calls.close_range(3 + len(low))\n", "", tests=PROCESSES),
    Mutant("environment cleared", CHILD, "    os.environ.clear()\n    os.environ.update(environment(given))\n", "",
           tests=PROCESSES),
    # ---- namespaces and what is mounted in them
    Mutant("network namespace", CHILD, " | calls.CLONE_NEWNET", "", tests=("network", "processes")),
    Mutant("ipc namespace", CHILD, " | calls.CLONE_NEWIPC", "", tests=PROCESSES),
    Mutant("uts namespace", CHILD, " | calls.CLONE_NEWUTS", "", tests=PROCESSES),
    Mutant("cgroup namespace", CHILD, " | calls.CLONE_NEWCGROUP", "", tests=PROCESSES),
    Mutant("pid namespace", "isolation/zygote.py", "                calls.unshare(calls.CLONE_NEWPID)\n", "",
           tests=("processes", "living")),
    Mutant("own /proc", "isolation/furnish.py", '        calls.mount("proc", "/proc", "proc", _FLAGS)\n', "",
           tests=PROCESSES),
    Mutant("other workspaces covered", "isolation/furnish.py", 'for path in ("/run", room.runs):',
           'for path in ("/run",):',
           tests=FILES),
    Mutant("size of a tmpfs", "isolation/furnish.py",
           'return f"size={size_mb}m,nr_inodes={4096 + size_mb * _FILES_PER_MIB}"',
           'return "size=4g"', tests=RESOURCES),
    Mutant("read-only root", "isolation/bubblewrap.py", '"--remount-ro", "/dev", "--remount-ro", "/"]', "]",
           tests=FILES),
    # ---- the zygote and its start
    Mutant("uid dropped", "isolation/launch.py", "    if launch.uid is not None and launch.gid is not None:\n",
           "    if False:\n",
           tests=PROCESSES),
    Mutant("uid dropped, and not looked at", "isolation/forking.py", "        if os.geteuid() != 0:\n",
           "        if True:\n", tests=PROCESSES, also=(Edit("isolation/launch.py",
           "    if os.getuid() == 0 or os.geteuid() == 0:\n", "    if False:\n"),)),
    Mutant("empty environment of the launcher", "isolation/lifeline.py", "            env={},\n", "",
           tests=PROCESSES),
    Mutant("control groups", "isolation/forking.py", "Cgroups.open(self._prefix)", "None",
           tests=(*RESOURCES, "unit/isolation/test_backends_own.py")),
    Mutant("watchdog", "isolation/forking.py", "        with contextlib.suppress(Gone):\n            return self._dog",
           "        with contextlib.suppress(Gone):\n            return None and self._dog", ORDINARY, RESOURCES),
    # ---- the channel
    Mutant("caps of a frame", "wire/frames.py", "    if not 1 <= control <= MAX_CONTROL:\n", "    if False:\n",
           tests=(*CHANNEL, "unit/wire/test_frames.py")),
    Mutant("cap of a body", "wire/frames.py", "    if body > MAX_BODY:\n", "    if False:\n",
           tests=(*CHANNEL, "unit/wire/test_frames.py")),
    Mutant("deadline of a frame", "spawn/door.py",
           'self._timers["frame"] = '
           "self._loop.call_at(self._partial_since + self._reader.allowance_s, self._end, late)",
           "_ = late", tests=CHANNEL),
    Mutant("token bucket", "spawn/door.py", "        if self._tokens < 1:\n", "        if False:\n", tests=CHANNEL),
    Mutant("rising numbers", "spawn/door.py", "            if said.id <= self._last_id:\n", "            if False:\n",
           tests=CHANNEL),
    Mutant("unknown fields refused", "wire/requests.py",
           'class Said(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field',
           'class Said(Struct, frozen=True, kw_only=True, forbid_unknown_fields=False, tag_field',
           tests=(*CHANNEL, "properties/test_requests.py", "unit/wire/test_hello.py")),
    Mutant("sizes of a value", "wire/reading.py", "    if not 0 < json_size <= len(body):\n", "    if False:\n",
           tests=(*CHANNEL, "unit/wire/test_values.py", "properties/test_values.py")),
    # ---- rights and limits of children
    Mutant("rights refused", "core/policy.py", "    if lacking:\n", "    if False:\n", tests=SPAWNING),
    Mutant("limits clamped", "core/policy.py", "else min(wanted[name], most[name]) for name",
           "else wanted[name] for name",
           tests=SPAWNING),
    Mutant("sub-agents by leave only", "spawn/granting.py", "    if not grant.allow_sub_agents:\n", "    if False:\n",
           tests=("spawning", "channel")),
    Mutant("depth", "spawn/granting.py", "    if grant.max_sub_agent_depth < 1:\n", "    if False:\n",
           also=(Edit("core/policy.py", '    if most["max_sub_agent_depth"] < 0:\n', "    if False:\n"),),
           tests=(*SPAWNING, "unit/core/test_policy.py")),
    Mutant("number of children", "spawn/granting.py", "    if asked >= grant.max_sub_agents:\n", "    if False:\n",
           tests=SPAWNING),
    Mutant("loaders' variables", "core/rights.py", "    if _LOADERS.fullmatch(name):\n", "    if False:\n",
           tests=SPAWNING),
    Mutant("paths of mounts", "core/rights.py", "        not text.startswith(\"/\")\n        or",
           "        False and", tests=FILES),
    # ---- what comes back
    Mutant("links not collected", "isolation/artifacts.py", "    if kind != stat.S_IFREG:\n", "    if False:\n",
           tests=(*FILES, "security/test_artifacts.py", "unit/isolation/test_artifacts.py")),
    Mutant("hard links not collected", "isolation/artifacts.py", "    if entry.stat.st_nlink != 1:\n",
           "    if False:\n",
           tests=(*FILES, "security/test_artifacts.py", "unit/isolation/test_artifacts.py")),
    Mutant("size of artifacts", "isolation/artifacts.py", "    if total > max_bytes:\n", "    if False:\n",
           tests=("answers",)),
    Mutant("size of a result", "guest/__main__.py", ", max_bytes=start.max_result_bytes", "",
           tests=("answers", "channel", "trips/test_isolated_limits.py", "unit/guest/")),
)  # fmt: skip


class Found(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    failed: tuple[str, ...]  #: tests, by name
    note: str = ""


def environment(scratch: pathlib.Path) -> pathlib.Path:
    """A Python that finds ramet in a copy: this one's environment, all files shared but the one that says where."""
    shutil.copytree(sys.prefix, scratch / "venv", symlinks=True, copy_function=_link)
    [here] = (scratch / "venv").glob("lib/python*/site-packages/_editable_impl_ramet.pth")
    here.unlink()
    here.write_text(str(scratch / "src"))
    return scratch / "venv" / "bin" / "python"


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def mutate(scratch: pathlib.Path, mutant: Mutant) -> str:
    """Make a fresh copy of the source, less one layer; returns what is wrong with the mutant, if anything is."""
    shutil.rmtree(scratch / "src", ignore_errors=True)
    shutil.copytree(scratch / "whole", scratch / "src")
    for edit in (Edit(mutant.file, mutant.words, mutant.instead), *mutant.also):
        file = scratch / "src" / "ramet" / edit.file
        text = file.read_text()
        if text.count(edit.words) != 1:
            return f"**its words occur {text.count(edit.words)} times in {edit.file}**"
        file.write_text(text.replace(edit.words, edit.instead))
    return ""


def attack(python: pathlib.Path, mutant: Mutant, *, enough: int = ENOUGH) -> tuple[str, ...]:
    """The tests that fail under a mutant; after `enough` of them nobody looks further. A path names a file of tests."""
    attacks = [str(TESTS / f"test_attacks_{name}.py") for name in mutant.tests if "/" not in name]
    failed = _failing(python, [*attacks, "-k", mutant.kernel], enough) if attacks else []
    others = [str(PROJECT / "tests" / name) for name in mutant.tests if "/" in name]
    return tuple(dict.fromkeys(failed + (_failing(python, others, enough) if others else [])))


def _failing(python: pathlib.Path, arguments: list[str], enough: int) -> list[str]:
    options = ["-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", f"--maxfail={enough}"]
    done = subprocess.run(
        [python, "-m", "pytest", *options, *arguments], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    return re.findall(r"^(?:FAILED|ERROR) \S+::(\w+(?:\[.*\])?)", done.stdout, re.MULTILINE)


def baseline(python: pathlib.Path, scratch: pathlib.Path, mutants: list[Mutant]) -> frozenset[str]:
    """The tests that fail with every layer in place: they say nothing about a layer."""
    mutate(scratch, Mutant("", "core/policy.py", "class Policy(", "class Policy("))
    tests = tuple(dict.fromkeys(name for mutant in mutants for name in mutant.tests))
    kernels = " or ".join(dict.fromkeys(mutant.kernel for mutant in mutants))
    return frozenset(attack(python, Mutant("", "", "", "", kernels, tests), enough=10_000))


def line(found: Found) -> str:
    """A row of the table."""
    tests = list(dict.fromkeys(name.partition("[")[0] for name in found.failed))
    names = [f"`{name}`" for name in tests[:SHOWN]]
    more = f" and {len(tests) - SHOWN} more" if len(tests) > SHOWN else ""
    said = ", ".join(names) + more if names else found.note or "**none**"
    return f"| {found.mutant.layer} | {found.mutant.kernel} | {said} |"


def main(layers: list[str]) -> int:
    """Try every mutant, or those whose layer is named."""
    wrong = 0
    with contextlib.ExitStack() as stack:
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="ramet-mutants-", dir="/var/tmp"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        scratch.chmod(0o755)
        python = environment(scratch)
        shutil.copytree(PROJECT / "src", scratch / "whole", ignore=shutil.ignore_patterns("__pycache__"))
        mutants = [each for each in MUTANTS if not layers or any(layer in each.layer for layer in layers)]
        known = baseline(python, scratch, mutants)
        print("| taken away | shown on | tests that fail |\n|---|---|---|", flush=True)  # noqa: T201
        for mutant in mutants:
            note = mutate(scratch, mutant)
            failed = () if note else attack(python, mutant, enough=ENOUGH + len(known))
            found = Found(mutant, tuple(name for name in failed if name not in known), note)
            wrong += not found.failed
            print(line(found), flush=True)  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
