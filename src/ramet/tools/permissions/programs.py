"""Lists what programs do with the words after their names: run them, run a text among them, or start nothing.

A program that is not listed here may start any of its operands. Options count as GNU, util-linux and bash have them.
"""

from __future__ import annotations

from typing import NamedTuple

#: Programs that run a text as a command.
SHELLS = frozenset("ash bash csh dash elvish fish ksh mksh nu pwsh rbash sh tcsh xonsh yash zsh".split())
#: Programs that run one of their words, or all of them together, as a text.
TEXT_RUNNERS = frozenset("compgen complete eval mapfile readarray ssh trap watch".split())
#: Programs of which no text tells what they run.
UNKNOWN_RUNNERS = frozenset("at batch bind crontab enable fc parallel".split())
#: Programs that start a shell where nothing else is given.
SHELL_STARTERS = frozenset(
    "capsh chroot fakeroot i386 linux32 linux64 newgrp nsenter runuser script setarch sg su unshare x86_64".split()
)
#: Variables whose value a shell or the loader runs.
RUN_VARIABLES = frozenset(
    "BASHOPTS BASH_ENV ENV GCONV_PATH LD_AUDIT LD_LIBRARY_PATH LD_PRELOAD PROMPT_COMMAND PS0 PS1 PS2 PS4"
    " SHELLOPTS".split()
)
#: Builtins that evaluate the names that they are given, substitutions in them included.
EVALUATING = frozenset("[ [[ declare export let local printf read readonly test typeset unset wait".split())
#: Builtins whose words are assignments.
ASSIGNING = frozenset("declare export local readonly typeset".split())


class Wrapper(NamedTuple):
    """A program that runs its words behind its options and `positionals` more words."""

    flags: str = ""  #: letters of options without an argument
    values: str = ""  #: letters of options with an argument
    positionals: int = 0
    long_flags: tuple[str, ...] = ()
    reads_text: bool = False  #: some options with an argument run the argument


#: Wrappers whose options are known, so that the place of the program is.
WRAPPERS = {
    "builtin": Wrapper(),
    "busybox": Wrapper(),
    "toybox": Wrapper(),
    "command": Wrapper(flags="p"),
    "chrt": Wrapper(flags="abdefimorRv", values="DPT", positionals=1),
    "coproc": Wrapper(),
    "doas": Wrapper(flags="Ln", values="Cu"),
    "env": Wrapper(flags="0iv", values="Cu", long_flags=("--debug", "--ignore-environment", "--null"), reads_text=True),
    "exec": Wrapper(flags="cl", values="a"),
    "flock": Wrapper(flags="FenosuxV", values="Ew", positionals=1),
    "ionice": Wrapper(flags="t", values="cn"),
    "nice": Wrapper(flags="0123456789", values="n"),
    "nohup": Wrapper(),
    "setsid": Wrapper(flags="cfw"),
    "stdbuf": Wrapper(values="eio"),
    "sudo": Wrapper(flags="ABEHKPSkn", values="CDRTghpru", long_flags=("--non-interactive", "--preserve-env")),
    "taskset": Wrapper(flags="ac", positionals=1),
    "time": Wrapper(flags="apqv", values="fo"),
    "timeout": Wrapper(
        flags="v", values="ks", positionals=1, long_flags=("--foreground", "--preserve-status", "--verbose")
    ),
    "xargs": Wrapper(flags="0eiloprtx", values="EILPadns", long_flags=("--no-run-if-empty", "--null", "--verbose")),
}
#: Wrappers that run some words behind some others: each word may be the program.
LOOSE_WRAPPERS = SHELL_STARTERS | frozenset(
    "bwrap cgexec choom chpst dbus-run-session dumb-init eatmydata entr faketime firejail gosu ltrace machinectl npx"
    " bunx numactl perf pkexec prlimit proxychains proxychains4 pyenv rbenv rlwrap run0 setpriv sshpass strace su-exec"
    " systemd-inhibit systemd-run tini torsocks unbuffer valgrind xvfb-run".split()
)
FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

#: Programs that start none of their operands, and the options with which they do all the same.
_HARMLESS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ": [ [[ basename break case cat cd chgrp chmod chown cksum cmp comm continue cp curl cut date declare df diff"
    " dirname done du echo egrep esac exit export false fgrep fi file for grep hash head help id in info join kill ln"
    " local ls md5sum mkdir mktemp mv nl od paste popd printf pushd pwd read readlink readonly realpath return rm rmdir"
    " select seq set sha1sum sha256sum shift shopt sleep stat tail tee test touch tr true truncate type"
    " typeset umask unalias uname unset wait wc wget whatis whereis which whoami } ]] function".split(),
    (),
)
_HARMLESS |= {
    "apt": ("-c", "-o", "--option", "--config-file"),
    "apt-get": ("-c", "-o", "--option", "--config-file"),
    "apk": (),
    "brew": (),
    "dnf": ("--setopt",),
    "git": (
        *("-c", "-x", "-O", "-u", "--config-env", "--exec", "--extcmd", "--open-files-in-pager", "--receive-pack"),
        *("--upload-pack", "config", "filter-branch", "foreach", "run"),
    ),
    "man": ("-P", "-H", "-C", "--pager", "--html", "--config-file"),
    "pip": (),
    "pip3": (),
    "rg": ("--pre", "--hostname-bin"),
    "yum": ("--setopt",),
}
#: Subcommands that start none of their operands.
_HARMLESS_SUBCOMMANDS = {
    "cargo": "add install remove rm search uninstall update",
    "docker": "cp images inspect kill logs ps pull push restart rm rmi start stop tag",
    "npm": "add ci i info install list ls outdated publish remove rm search un uninstall update view",
    "pnpm": "add i install list ls remove rm uninstall update",
    "podman": "cp images inspect kill logs ps pull push restart rm rmi start stop tag",
    "uv": "add lock pip remove sync",
    "yarn": "add info install list remove upgrade",
}


def is_harmless(name: str, operands: list[str]) -> bool:
    """Return whether a program starts none of these operands."""
    subcommands = _HARMLESS_SUBCOMMANDS.get(name)
    if subcommands is not None:
        return bool(operands) and operands[0] in subcommands.split()
    starting = _HARMLESS.get(name)
    return starting is not None and not any(_is_one_of(each, starting) for each in operands)


def _is_one_of(operand: str, starting: tuple[str, ...]) -> bool:
    if operand[:2] == "--":
        return operand.partition("=")[0] in starting or any(
            each.startswith(operand.partition("=")[0]) for each in starting
        )
    letters = operand[1:] if operand.startswith("-") else ""
    return operand in starting or any(f"-{letter}" in starting for letter in letters)
