"""Commands that hide a start from rules, by how a shell splits the text and where a program gets its words."""

from __future__ import annotations

import pathlib

import pytest

from tests.support.marked_program import MarkedProgram
from tests.unit.tools.test_permission_starters import verdict

_DIFF = "git diff --no-index --ext-diff x y"

#: Where a shell cuts the text. Each of these starts `rm`.
CUTS = [
    # A dollar that begins no expansion is a letter, and the next character counts as itself.
    "echo $; rm x",
    "echo $|rm x",
    "echo $&rm x",
    "echo $\\'; rm x; echo \\'",
    'echo "$\\""; rm x; echo "$\\""',
    "echo ${a:-$};\nrm x # }",
    "case $ in $) rm x;; esac",
    "echo ${a:-<(rm x)}",
    # `$$` is a variable.
    "echo $$; rm x",
    "echo $$|rm x",
    "echo $${x; rm x; echo }",
    "echo $$'\\'; rm x #'",
    # A line that goes on in the middle of an operator or of a name.
    "cat <\\\n<E\n'\nE\nrm x\n'",
    "read -r v < y; (\\\n(v))",
    "read -r v < y; echo $(\\\n(v))",
    "read -r v < y; (\\\n\\\n(v))",
    "AB=-exec; find . -maxdepth 0 $A\\\nB rm {} +",
    "AB=-exec; find . -maxdepth 0 ${A\\\nB} rm {} +",
    # A here-document that ends elsewhere, or whose text is expanded after all.
    "cat <<EOF\nEO\\\nF\nrm x\n: <<EOF\nEOF",
    "cat <<-EOF\n\tEO\\\nF\nrm x\n: <<EOF\nEOF",
    "cat <<E\\\nOF\n$(rm x)\nEOF",
    "cat <<E\\\n\n$(rm x)\nE",
    "cat <<-E\\\nF\n\t$(rm x)\nEF",
    "echo $(cat <<E\nE)\nrm x\nE\n)",
    "cat <(cat <<E\nE)\nrm x\nE\n)",
    "sh -c '<<E${a ;rm x}'",
    "echo `cat <<'E'\nA`\nrm x\n: `\nE\n`",
    # Bash goes on behind a line in which an array is wrong.
    "a=(1 <<'E'; }\nrm x\nE\n)",
    "a=(1)echo rm x",
    "a=(1)'echo' rm x",
    "a=(1)\\\necho rm x",
    "a=(1 | '\nrm x\n' )",
    "a=\\\n(1 | '\nrm x\n' )",
    "a[2]=((1) '\nrm x\n' )",
    "a\\\n[1<<E]=1\nrm x\nE",
    # In arithmetic `#` begins no comment.
    "(( 1 #)); rm x\n))",
    "(( (1) #)); rm x\n))",
    # `sh` knows neither `$'…'` nor `&>`.
    "sh -c \"echo \\$'\\\\'; rm x #'\"",
    "sh -c 'echo &>a rm x'",
    "env sh -c 'echo a &>a rm x'",
]

#: What gives a program its words. Each of these starts `rm`.
WORDS = [
    # The names that `find` finds.
    "find bin -name rm -exec {} x \\;",
    "find bin -name rm -execdir {} x \\;",
    "find -- bin/rm -exec {} x \\;",
    "find bin/rm -exec env {} x \\;",
    "find bin/rm -exec timeout 5 {} x \\;",
    "find bin/rm -exec xargs {} \\; < x",
    "find bin/rm -exec sh -c '{} x' \\;",
    "find bin/rm -exec tar -I'{} x;' -cf a.tgz y \\;",
    "mkdir 'rm x'; find 'rm x' -exec bash -c {} \\;",
    "touch 'a;rm x'; find . -name 'a*' -exec sh -c 'echo {}' \\;",
    "echo rm x > a; find a -exec bash {} \\;",
    # A parameter that is not set, or another text in its place.
    "find . -maxdepth 0 ${X:--exec} rm {} +",
    "find . -maxdepth 0 ${PATH:+-exec} rm {} +",
    "find . -maxdepth 0 ${X-'-exec'} rm {} +",
    'find . -maxdepth 0 ${X:-"-exec"} rm {} +',
    'find . -maxdepth 0 "${X:--exec}" rm {} +',
    "find . -maxdepth 0 ${PWD/$PWD/-exec} rm {} +",
    "find . -maxdepth 0 ${X-${X--exec}} rm {} +",
    "find . -maxdepth 0 $X-exec rm {} +",
    "printf $X-v PS4 '$(r%s x)' m; set -x; :",
    "printf ${X:--v} PS4 '$(r%s x)' m; set -x; :",
    'read -r v < y; [ $X-v "$v" ]',
    "find . -maxdepth 0 ${X:+a}${X:--exec} rm {} +",
    "tar -I$X'rm x;' -cf a.tgz y",
    "tar -I$X''rm' x;' -cf a.tgz y",
    "tar -I${X:-'rm x;'} -cf a.tgz y",
    'tar -I"${X:-rm} x;" -cf a.tgz y',
    "tar -I ${X:-./bin/rm} -cf a.tgz y",
    "tar ${X:--Ibin/rm} -cf a.tgz y",
    # Other spellings of the file that a shell reads.
    "echo rm x | bash //dev/stdin",
    "echo rm x | . //dev/stdin",
    "echo rm x | . -- /dev/stdin",
    "echo rm x | bash -- /./dev/stdin",
    "echo rm x | bash ///dev///fd//0",
    "echo rm x | bash /tmp/../dev/fd/0",
    "echo rm x | bash ../../../../../../../../dev/stdin",
    "cd /; echo rm x | . dev/stdin",
    "cd /dev; echo rm x | bash stdin",
    "cd /dev; echo rm x | . ./stdin",
    "exec <<< 'rm x'; cd /dev/fd; . ./0",
    # Variables whose value a program runs.
    f"for GIT_EXTERNAL_DIFF in 'rm x'; do export GIT_EXTERNAL_DIFF; {_DIFF}; done",
    f"for GIT_EXTERNAL_DIFF in bin/r?; do export GIT_EXTERNAL_DIFF; {_DIFF}; done",
    f"set -a; select GIT_EXTERNAL_DIFF in rm; do {_DIFF}; break; done <<< 1",
    f"read -r GIT_EXTERNAL_DIFF <<< rm; export GIT_EXTERNAL_DIFF; {_DIFF}",
    f"while read -r GIT_EXTERNAL_DIFF; do export GIT_EXTERNAL_DIFF; {_DIFF}; done <<< rm",
    f"export GIT_EXTERNAL_DIFF=r; GIT_EXTERNAL_DIFF+=m; {_DIFF}",
    f"declare -x GIT_EXTERNAL_DIFF=r; declare GIT_EXTERNAL_DIFF+=m; {_DIFF}",
    f"export GIT_EXTERNAL_DIFF; : ${{GIT_EXTERNAL_DIFF:=rm}}; {_DIFF}",
    f"V=r; V+='m x'; GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=diff.external GIT_CONFIG_VALUE_0=$V {_DIFF}",
    f"A=r; GIT_CONFIG_PARAMETERS=\"'diff.external=${{A}}m'\" {_DIFF}",
    "A=r; export TAR_OPTIONS=--to-command=${A}m; tar cf a y; tar xf a",
    f"set -k; {_DIFF} GIT_EXTERNAL_DIFF=rm",
    f"set -ek; {_DIFF} GIT_EXTERNAL_DIFF=rm",
    f"o=-k; set $o; {_DIFF} GIT_EXTERNAL_DIFF=rm",
    f"set -o keyword; {_DIFF} GIT_EXTERNAL_DIFF=rm",
    f"shopt -so keyword; {_DIFF} GIT_EXTERNAL_DIFF=rm",
    f"bash -kc '{_DIFF} GIT_EXTERNAL_DIFF=rm'",
    f"bash -o keyword -c '{_DIFF} GIT_EXTERNAL_DIFF=rm'",
    # What sed runs, between any delimiters.
    "sed 's#a#rm x#e' <<< a",
    "sed 's_a_rm x_e' <<< a",
    "sed 's.a.rm x.e' <<< a",
    "sed '1s+a+rm x+e' <<< a",
    "sed 'sbabrm xbe' <<< a",
    "sed -n 's%a%rm x%ep' <<< a",
    "sed 's#a#rm x#1em' <<< a",
    "sed 's#a#rm x#e;p' <<< a",
    "sed 's#a#rm x#e # c' <<< a",
    "sed 's#a#rm x#ew f' <<< a",
    "sed 's#\\##rm x#e' <<< '#'",
    "sed 's#a#rm x#;e' <<< a",
    "sed '1{s#a#rm x#e}' <<< a",
    "sed --expression='s#a#rm x#e' <<< a",
    "sed 's/^/r/e' <<< 'm x'",
    "sed -es/^/r/e <<< 'm x'",
    "sed '\\sass#a#rm x#e' <<< a",
    "sed '\\%a%erm x' <<< a",
    "sed -f - y <<< '1erm x'",
    "X=e; sed 's#a#rm x#'$X <<< a",
    "sed 's#a#rm x#e'$U <<< a",
    "sed '0~1erm x' <<< a",
    "sed '/a/Ierm x' <<< a",
    "sed '1,+1erm x' <<< a",
    "echo m x | sed 's/^/r/' | sed e",
    "echo m x | sed 's/^/r/' | sed -n '1e\np'",
]


@pytest.mark.parametrize("commands", [CUTS, WORDS], ids=["cuts", "words"])
def test_each_start_by_bash_is_denied_or_asked_about(tmp_path: pathlib.Path, commands: list[str]) -> None:
    """Each command starts the program for real, and none of them passes a rule against the program."""
    shells = MarkedProgram(tmp_path)
    for command in commands:
        shells.run(command)

    started_programs = shells.started()
    assert [each for each in commands if each not in started_programs] == []
    assert [each for each in commands if verdict(each, cwd=shells.cwd) is None] == []


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("touch push; find push -exec git {} \\;", "Bash(git push:*)"),
        ("find push pull -exec git {} \\;", "Bash(git push:*)"),
        ("git push$UNSET origin", "Bash(git push:*)"),
        ("git ${X:-push} origin", "Bash(git push:*)"),
        ("mytool ${X:-rm} x", "Bash(rm:*)"),
        ("mytool $X'bash' -c 'r\\m x'", "Bash(rm:*)"),
        ("mytool ${PATH:+sh} -c 'r\\m x'", "Bash(rm:*)"),
        ("GIT_EDITOR=${X:-rm} git commit", "Bash(rm:*)"),
        ("mytool ${X:-sh} -c 'r\\m x'", "Bash(rm:*)"),
        ("find bin -exec mytool {} x \\;", "Bash(rm:*)"),
        ("find bin -name 'r*' -exec mytool {} x \\;", "Bash(rm:*)"),
        ("find bin -name '*.py' -o -name rm -exec mytool {} x \\;", "Bash(rm:*)"),
        ("find bin ! -name '*.py' -exec mytool {} x \\;", "Bash(rm:*)"),
        ("find bin -name 'r\\m' -exec mytool {} x \\;", "Bash(rm:*)"),
        ("find bin -name 'bas[h]' -exec mytool {} -c 'r\\m x' \\;", "Bash(rm:*)"),
        ("find $D -name '*.py' -exec mytool {} x \\;", "Bash(rm:*)"),
        ('A=r; MAKEFLAGS="--eval=x:;@${A}m" make x', "Bash(rm:*)"),
        ("A=r; RSYNC_RSH=${A}m rsync a b:", "Bash(rm:*)"),
        ("fish -c 'echo (echo r)m x'", "Bash(rm:*)"),
    ],
)
def test_a_possible_denied_start_is_asked_about(command: str, rule: str) -> None:
    """A shell, `find` or a program makes the words from text that no rule can match."""
    assert verdict(command, rule) in ("ask", "deny")


def test_an_allow_rule_does_not_count_after_a_dollar(tmp_path: pathlib.Path) -> None:
    """Text after a dollar that begins no expansion is a command of its own."""
    hidden = ["echo $; rm x", "echo $$; rm x", "echo $|rm x", "echo $&rm x"]

    assert [each for each in hidden if verdict(each, "Bash(echo:*)", effect="allow") is not None] == []
    assert verdict("echo $; cat secrets/key", "Read(./secrets/**)", cwd=str(tmp_path)) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        'grep -rn "foo$" src',
        "grep -n 'price: $5' x",
        'echo "cost: $ 5"; ls',
        "[[ $A =~ ^[0-9]+$ ]] && echo",
        "kill $! ; echo $$ $? $# $-",
        "pytest \\\n  -x \\\n  tests",
        "git add -A &&\\\n  git commit -m x",
        "cat <<EOF > a.txt\nA line that \\\ngoes on\nEOF",
        "cat <<'EOF' > a.sh\nmake \\\n  all\nEOF",
        "find . -name '*.py' -exec python3 -m py_compile {} \\;",
        "find src -type f -name '*.ts' -exec prettier --write {} +",
        "find . -type f -exec grep -l x {} +",
        "find . -name '*.tmp' -exec mv {} old/ \\;",
        "find . -type f -exec chmod 644 {} \\;",
        "find . -name '*.sh' -exec sed -i s/a/b/ {} +",
        "git push origin ${BRANCH:-main}",
        "docker build -t ${APP}-web ${QUIET:+-q} .",
        "python3 x.py --port ${PORT:-8080} --out ${OUT-a.txt}",
        "bash dev/setup.sh",
        "sh ./scripts/stdin-test.sh",
        "for EDITION in a b; do echo $EDITION; done",
        "read -r line < a; echo $line",
        "set -euo pipefail; ls",
        "set -x; make",
        "PATH+=:bin; make",
        "EDITOR=vi git commit",
        "sed -i 's#/usr/bin#/opt/bin#g' a.txt",
        "sed -n '1,5p' file",
        "sed -e 's/apple/orange/' -e '/^#/d' file",
        "sed -E 's|(.*)e|\\1|;s/x/y/' some/file",
        "sed -i '/^use /d' src/main.rs",
        "sh -c 'ls; pwd' > /dev/null",
        "bash -c 'make &> log'",
        "make &>/dev/null; ls",
        "echo $'a\\tb'",
        "echo $((1 + 16#ff))",
        "ls # a comment (with words)",
        "((i++)); ls # a comment",
    ],
)
def test_ordinary_commands_are_not_asked_about(command: str) -> None:
    """Dollars, continued lines, names that find finds and scripts of sed are usual."""
    assert verdict(command) is None
