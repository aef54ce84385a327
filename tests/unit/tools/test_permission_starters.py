"""Programs that start programs, held against rules: what a real bash starts is denied, or a person is asked."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from ramet.core.permissions import Effect, Permissions
from ramet.tools.permissions.judging import Call, judge
from ramet.tools.permissions.parsing import parse_rule


def verdict(command: str, *rules: str, cwd: str = "/p") -> Effect | None:
    """What rules of `deny` make of a command."""
    held = tuple(parse_rule(each, "deny", source="s", field="f", root="/p") for each in rules or ("Bash(rm:*)",))
    return judge(Permissions(rules=held), Call("Bash", {"command": command}, cwd)).verdict


#: Each of these starts `rm x` in a bash that has `rm` and the programs of `bin` below.
STARTED_BY_BASH = [
    "function f { rm x; }; f",
    "time -p rm x",
    "time -- rm x",
    "env -S'rm x'",
    "env -vS'rm\\_x'",
    "env --split-string='rm x'",
    "env --split='rm x'",
    "X=rm; timeout 5s $X x",
    "X=rm; env -u A $X x",
    "bash <<< 'rm x'",
    "bash <<E\nrm x\nE",
    "bash -s <<E\nr''m x\nE",
    "echo rm x | sh",
    "echo rm x | bash /dev/stdin",
    "sh -c 'r\\m' x",
    ". /dev/stdin <<< 'rm x'",
    "source <(echo rm x)",
    "eval 'r\\m' x",
    "shopt -s expand_aliases\nalias r=rm\nr x",
    "trap 'r\\m x' EXIT",
    "mapfile -C 'rm x' -c 1 <<< a",
    "compgen -C 'rm x'",
    'hash -p "$(type -P rm)" r; r x',
    "BASH_ENV=<(echo rm x) bash -c :",
    "PS4='$(rm x)'; set -x; :",
    "a='b[$(rm x)]'; ((a))",
    "echo rm | xargs -I % env % x",
    "echo rm x | xargs env",
    "echo rm | xargs sh -c",
    "coproc C { rm x; }; wait",
    "exec -a a rm x",
    "set a; for i do rm x; done",
    "a['$(rm x)']=1",
    "for a in 'b[$(rm x)]'; do ((a)); done",
    "read 'BASH_ALIASES[q]' <<< 'rm x'\nshopt -s expand_aliases\nq",
    "echo rm x | xargs --replace=R bash -c R",
    "env 'BASH_FUNC_ls%%=() { rm x; }' bash -c ls",
    # What the text of a command hides.
    "x2>&1.fA=x='$(rm x)'",
    "${A:-rm x}{ ",
    "echo \\\\\nrm x",
    "echo # \\\nrm x",
    'echo "$(case x in x) echo;; esac; rm x)"',
    'cat <<E\n\'\nE\necho "\n"; rm x; echo "\n"',
    'echo "`echo \\" # \\"; rm x`"',
    "echo `echo #`; rm x",
    "echo \r#; rm x",
    "shopt -s extglob\n./+(b)in/rm x",
]


def test_what_bash_starts_is_denied_or_asked(tmp_path: pathlib.Path) -> None:
    """Each command starts the program for real, and none of them passes a rule against the program."""
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "rm").write_text('#!/bin/bash\necho >>"$STARTED"\n')
    (bin / "rm").chmod(0o755)
    for each in ("bash", "sh", "env", "cat", "timeout", "xargs"):
        (bin / each).symlink_to(f"/usr/bin/{each}")
    started = tmp_path / "started"
    left_out, passed = [], []
    for command in STARTED_BY_BASH:
        subprocess.run(
            ["/bin/bash", "--noprofile", "--norc", "-c", command],
            cwd=tmp_path,
            env={"PATH": os.fspath(bin), "STARTED": os.fspath(started)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
        )
        if not started.exists():
            left_out.append(command)
        started.unlink(missing_ok=True)
        if verdict(command) is None:
            passed.append(command)

    assert left_out == []
    assert passed == []


@pytest.mark.parametrize(
    "command",
    [
        "chrt 1 rm x",
        "linux64 rm x",
        "choom -n 0 -- rm x",
        "sg group -c 'rm x'",
        "capsh -- -c 'rm x'",
        "bwrap --bind / / rm x",
        "fakeroot rm x",
        "npx rm x",
        "pyenv exec rm x",
        "perf stat rm x",
        "valgrind rm x",
        "a-program-of-tomorrow --then rm x",
        "a-program-of-tomorrow --then=rm x",
        "a-program-of-tomorrow --then '/bin/rm x'",
        "python3 -c 'import os; os.system(\"rm x\")'",
        "perl -e 'exec q(rm x)'",
        "awk 'BEGIN { system(\"rm x\") }'",
        "python3 <<E\nimport os\nos.system('rm x')\nE",
        "tar cf a --checkpoint-action=exec='rm x' b",
        "git -c alias.x='!rm x' x",
        "git bisect run rm x",
        "find . -exec rm {} \\;",
        "echo rm x | at now",
        "sudo -s <<< 'rm x'",
        "echo rm x | ssh host",
        "ssh host r\\\\m x",
        "echo rm x | parallel",
        "strace -Q $X x",
        "bash --rcfile a -i",
        "env LD_PRELOAD=./a.so ls",
        "enable -f ./a.so b",
    ],
)
def test_a_program_that_may_start_another_does_not_hide_it(command: str) -> None:
    """Known programs and unknown ones: the call is denied, or a person is asked."""
    assert verdict(command) in ("deny", "ask")


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("git $X", "Bash(git push:*)"),
        ("git pus{h,}", "Bash(git push:*)"),
        ("echo push | xargs git", "Bash(git push:*)"),
        ("A=1 sudo git p$Y", "Bash(git push:*)"),
    ],
)
def test_an_operand_that_is_not_known_yet_is_asked_about(command: str, rule: str) -> None:
    """Where the words that a rule names may come from an expansion, or from the input of xargs."""
    assert verdict(command, rule) == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "git rm x",
        "git commit -m 'do not rm x; no'",
        "apt-get install -y rm",
        "sudo apt-get install rm",
        "npm install rm",
        "docker rm x",
        "grep -r rm .",
        "grep 'rm x' a | head -5",
        "man rm",
        "which rm",
        "command -v rm",
        "echo rm x",
        "printf '%s' 'a; rm x' > b",
        "cat <<'E' > notes\nrm x\n`rm`\nit's\nE",
        "ls rm",
        "cat $FILE",
        "timeout 5 cat $FILE",
        "sudo -u bob cat $FILE",
        "env A=1 cat $FILE",
        "xargs grep rm < a",
        "find . -name rm",
        "find $D -name '*.py' -exec grep x {} +",
        "bash -euo pipefail -c 'ls; pwd'",
        "bash script.sh a b",
        "bash --version",
        "source venv/bin/activate && python x.py",
        "for i in 1 2; do echo $i; done",
        "git commit -m \"$(cat <<'E'\nIt's done (rm x)\nE\n)\"",
        "if [[ $A == (a|b) ]]; then echo; fi",
        "python3 -c 'print(1)'",
        "make -j4 test",
        "git push origin $BRANCH",
    ],
)
def test_ordinary_commands_are_not_asked_about(command: str) -> None:
    """A name among the operands of a program that starts none, and a file by a variable, need nobody."""
    assert verdict(command) is None


def test_globs_and_braces_name_files(tmp_path: pathlib.Path) -> None:
    """A rule for Read meets the files that the shell would put in the place of a pattern."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").touch()
    (tmp_path / "public").touch()

    def found(command: str) -> Effect | None:
        return verdict(command, "Read(./secrets/**)", cwd=os.fspath(tmp_path))

    hidden = ["cat s*/key", "cat */k?y", "cat [s]ecrets/*", "cat {secrets,a}/key", "cat < s*/key", "head -n1 ./s*/key"]
    assert [each for each in hidden if found(each) != "deny"] == []
    assert [each for each in ["cat p*", "cat *.md", "cat {a,b}/key", "echo s*/key"] if found(each) is not None] == []
