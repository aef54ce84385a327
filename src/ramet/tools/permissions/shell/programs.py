"""Tables of what programs do with their operands: run them, run a text among them, or start nothing.

A program that is not listed here may start any of its operands. The options are those of GNU, util-linux and bash.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ramet.tools.permissions.shell.expansions import may_be_option
from ramet.tools.permissions.shell.words import Word

#: Programs that run a text as a command.
SHELLS = frozenset("ash bash csh dash elvish fish ksh mksh nu pwsh rbash sh tcsh xonsh yash zsh".split())
#: Shells that read a text like bash, and shells with their own syntax. The others read it like `sh`.
BASHES, FOREIGN_SHELLS = frozenset({"bash", "rbash"}), frozenset("csh elvish fish nu pwsh tcsh xonsh".split())
#: Programs that run one of their words, or all of them together, as a text.
TEXT_RUNNERS = frozenset("compgen complete eval mapfile readarray ssh trap watch".split())
#: Programs whose started programs cannot be determined from the text.
UNKNOWN_RUNNERS = frozenset("at batch bind crontab enable fc parallel".split())
#: Programs that start a shell by default.
SHELL_STARTERS = frozenset(
    "capsh chroot fakeroot i386 linux32 linux64 newgrp nsenter runuser script setarch sg su unshare x86_64".split()
)
#: Variables whose value a shell or the loader runs.
RUN_VARIABLES = frozenset(
    "BASHOPTS BASH_ENV ENV GCONV_PATH LD_AUDIT LD_LIBRARY_PATH LD_PRELOAD PROMPT_COMMAND PS0 PS1 PS2 PS4"
    " SHELLOPTS".split()
)
#: Variables whose value a program runs; a problem if the value comes from an expansion that rules cannot check.
PROGRAM_VARIABLES = re.compile(
    r"\w*(EDITOR|PAGER|VISUAL|BROWSER|SHELL|COMMAND|CMD|ASKPASS|SSH|RSH|DIFF|PROGRAM|MAKEFLAGS|MAKEFILES)\Z"
    r"|(GIT_CONFIG\w*|GIT_EXEC_PATH|GIT_TEMPLATE_DIR|LESS(OPEN|CLOSE)?|MANOPT|MFLAGS|PERL5DB|PERL5OPT|PYTHONSTARTUP"
    r"|RUBYOPT|(NODE|TAR|JAVA_TOOL)_OPTIONS)\Z"
)
#: Builtins that evaluate their name arguments, including substitutions in them.
EVALUATING = frozenset("[ [[ declare export let local printf read readonly test typeset unset wait".split())
#: Builtins that set or read the variables that their words name.
NAMING = frozenset("declare export getopts local read readonly typeset unset".split())
#: Builtins whose words are assignments.
ASSIGNING = frozenset("declare export local readonly typeset".split())


class Wrapper(NamedTuple):
    """A program that runs the words after its options and `positionals` further words."""

    flags: str = ""  #: letters of options without an argument
    values: str = ""  #: letters of options with an argument
    positionals: int = 0
    long_flags: tuple[str, ...] = ()
    reads_text: bool = False  #: some options with an argument run the argument


#: Wrappers with known options, so that the position of the program is known.
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
#: Wrappers that run some words after others: each word may be the program.
LOOSE_WRAPPERS = SHELL_STARTERS | frozenset(
    "bwrap cgexec choom chpst dbus-run-session dumb-init eatmydata entr faketime firejail gosu ltrace machinectl npx"
    " bunx numactl perf pkexec prlimit proxychains proxychains4 pyenv rbenv rlwrap run0 setpriv sshpass strace su-exec"
    " systemd-inhibit systemd-run tini torsocks unbuffer valgrind xvfb-run".split()
)
SEDS = frozenset({"gsed", "sed", "ssed"})
FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})

#: Programs that start none of their operands, whatever their options are.
_HARMLESS = frozenset(
    ": [ [[ basename break case cat cd chgrp chmod chown cksum cmp comm continue cp curl cut date declare df diff"
    " dirname done du echo egrep esac exit export false fgrep fi file for grep hash head help id in join kill let ln"
    " local ls md5sum mkdir mktemp mv nl od paste popd printf pushd pwd read readlink readonly realpath return rm rmdir"
    " select seq set sha1sum sha256sum shift shopt sleep stat tail tee test touch tr true truncate type"
    " typeset umask unalias uname unset wait wc whatis whereis which whoami } ]] function".split()
)


class _Tool(NamedTuple):
    """A program that starts none of its operands with these options and subcommands, but possibly with others."""

    flags: str  #: letters of options
    long: str = ""
    subcommands: str = ""  #: empty: the program has none
    with_any_options: str = ""  #: subcommands after which every option is harmless
    values: str = ""  #: letters of options before the subcommand that take a word


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_INSTALLING = (
    "--yes --assume-yes --quiet --verbose --help --version --dev --global --force --upgrade --user --no-cache"
    " --no-cache-dir --save --save-dev --save-exact --no-save --no-install-recommends --no-audit --no-fund"
    " --legacy-peer-deps --ignore-scripts --production --omit --json --reinstall --fix-broken --only-upgrade --purge"
    " --features --locked --requirement --editable --no-deps --all --simulate --dry-run"
)
_SYSTEM = (
    "add autoclean autoremove check-update clean del dist-upgrade downgrade erase fix full-upgrade info install list"
    " makecache policy provides purge reinstall remove repolist search show update upgrade"
)
_APT = _Tool("yqfdsumV", _INSTALLING, _SYSTEM)
_DNF = _Tool("yqv", _INSTALLING, _SYSTEM)
_PIP = _Tool("Uqvyreict", _INSTALLING, "check download freeze inspect install list search show uninstall wheel")
_CONTAINERS = _Tool("", with_any_options="cp images inspect kill logs ps pull push restart rm rmi start stop tag")
_NODE = "add ci i info install list ls outdated publish remove rm search un uninstall update upgrade view"
_TOOLS = {
    "apk": _Tool("Uqvfu", _INSTALLING, _SYSTEM),
    "apt": _APT,
    "apt-get": _APT,
    "brew": _Tool(
        "fqvdn",
        _INSTALLING,
        "cleanup deps doctor info install leaves link list ls outdated pin reinstall remove rm search tap"
        " uninstall unlink unpin untap update upgrade",
    ),
    "cargo": _Tool("qvFp", _INSTALLING, "add install remove rm search uninstall update"),
    "dnf": _DNF,
    "docker": _CONTAINERS,
    "git": _Tool(
        _LETTERS.translate(str.maketrans("", "", "cuxO")),
        "--all --tags --force --force-with-lease --set-upstream --delete --prune --depth --branch --recursive --quiet"
        " --verbose --rebase --no-rebase --ff-only --mirror --bare --dry-run --no-verify --follow-tags --single-branch"
        " --onto --continue --abort --skip --interactive --autosquash --heads --cached --line-number --name-only"
        " --ignore-case --no-pager --version --help",
        "clone fetch grep ls-remote pull push rebase remote",
        "add am apply blame branch cat-file check-ignore checkout cherry-pick clean commit count-objects describe diff"
        " diff-tree for-each-ref format-patch fsck gc hash-object init log ls-files ls-tree merge merge-base mv"
        " name-rev notes reflog reset restore rev-list rev-parse revert rm shortlog show show-ref stash status switch"
        " symbolic-ref tag update-index version worktree",
        "C",
    ),
    "man": _Tool("akfwiIKs0123456789"),
    "npm": _Tool("DSEOBgdqfsy", _INSTALLING, _NODE),
    "pip": _PIP,
    "pip3": _PIP,
    "pnpm": _Tool("DEOPgdqfsy", _INSTALLING, _NODE),
    "podman": _CONTAINERS,
    "rg": _Tool(
        _LETTERS,
        "--files --hidden --no-ignore --type --glob --iglob --line-number --count --files-with-matches --ignore-case"
        " --smart-case --fixed-strings --word-regexp --multiline --json --max-count --context --after-context"
        " --before-context --color --no-heading --heading --sort --stats --vimgrep --only-matching --replace --pcre2"
        " --max-depth --follow --invert-match --with-filename --no-filename --null --trim --version --help",
    ),
    "uv": _Tool("qvUr", _INSTALLING, "add lock pip remove sync"),
    "wget": _Tool(
        _LETTERS.replace("e", "") + "-",
        "--quiet --output-document --continue --no-check-certificate --spider --timeout --tries --header --user-agent"
        " --content-disposition --no-verbose --show-progress --recursive --mirror --directory-prefix",
    ),
    "yarn": _Tool("DEg", _INSTALLING, _NODE),
    "yum": _DNF,
}


def is_harmless(name: str, operands: Sequence[Word]) -> bool:
    """Return whether a program starts none of these operands, whatever the expanded ones become."""
    if name in _HARMLESS:
        return True
    tool, at = _TOOLS.get(name), 0
    if tool is None:
        return False
    while at < len(operands) and (tool.subcommands or tool.with_any_options) and operands[at].text.startswith("-"):
        takes_next = operands[at].text[1:] in tuple(tool.values)
        if not _is_known(tool, operands[at]) or (
            takes_next and any(each.is_expanded for each in operands[at : at + 2])
        ):
            return False
        at += 2 if takes_next else 1
    if tool.subcommands or tool.with_any_options:
        if at >= len(operands) or operands[at].is_expanded:
            return False
        if operands[at].text in tool.with_any_options.split():
            return True
        if operands[at].text not in tool.subcommands.split():
            return False
    end = next((index for index, each in enumerate(operands) if each.text == "--"), len(operands))
    return all(_is_known(tool, each) for each in operands[at:end]) and not any("::" in each.text for each in operands)


def _is_known(tool: _Tool, word: Word) -> bool:
    """Return whether a word is not an option, or is an option that starts no program."""
    if word.is_expanded:
        return not may_be_option(word)
    if word.text.startswith("--"):
        return word.text.partition("=")[0] in tool.long.split()
    return not word.text.startswith("-") or set(word.text[1:]) <= {*tool.flags, *tool.values}
