"""Rules and programs that start programs: a start by a real bash is denied, or a person is asked."""

from __future__ import annotations

import os
import pathlib

import pytest

from ramet.core.policy.permissions import Effect, Permissions
from ramet.tools.permissions.evaluation import Call, judge
from ramet.tools.permissions.parsing import parse_rule
from tests.support.marked_program import MarkedProgram


def verdict(command: str, *rules: str, cwd: str = "/p", effect: Effect = "deny") -> Effect | None:
    """Return the verdict of rules of one effect on a command."""
    permission_rules = tuple(
        parse_rule(each, effect, source="s", field="f", root="/p") for each in rules or ("Bash(rm:*)",)
    )
    return judge(Permissions(rules=permission_rules), Call("Bash", {"command": command}, cwd)).verdict


#: Each of these starts `rm` in the folder of `MarkedProgram`.
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
    # What expands to an option. `x` holds the text that is started, and `y` a subscript that starts it.
    "X=-exec; find . -maxdepth 0 $X rm {} +",
    "find . -maxdepth 0 {-exec,rm} {} +",
    ": > -exec; find . -maxdepth 0 -exe[c] rm {} +",
    "hash -rp ./bin/rm r; r x",
    "o=-p; hash $o ./bin/rm r; r x",
    "shopt -s expand_aliases; a=s=r; builtin alias l${a}m\nls x",
    "printf {-v,PS4} '$(r%s x)' m; set -x; :",
    "o=-v; printf $o PS4 '$(r%s x)' m; set -x; :",
    # Arithmetic evaluates what variables hold.
    "read -r v < y; echo $((v))",
    "read -r v < y; echo $[v]",
    "read -r v < y; ((v))",
    "read -r v < y; [[ v -eq 0 ]]",
    "read -r v < y; let v",
    "read -r v < y; [[ -n a && v -eq 0 ]]",
    "read -r v < y; [[ -n a && v -eq 0 && b ]]",
    '[[ "$(cat y)" -eq 0 ]]',
    "[[ $'b[\\x24(rm x)]' -eq 0 ]]",
    "read -r v < y; a=v; echo $((a))",
    "a=1; read -r v < y; echo ${a[b[0]]:v}",
    "read -r v < y; read 'a[v]' <<< 1",
    "a=(1); read -r v < y; unset 'a[v]'",
    "read -r v < y; : {a[v]}< y",
    "read -r v < y; RANDOM=$v",
    "read -r v < y; declare -i w=v",
    "read -r v < y; echo ${b[v]}",
    "read -r v < y; echo ${PATH:v}",
    "read -r v < y; echo ${!v}",
    "read -r v < y; b[v]=1",
    'read -r v < y; test -v "$v"',
    'read -r v < y; [ -n a -a -v "$v" ]',
    'o=-v; read -r v < y; [ $o "$v" ]',
    'b=(1); read -r v < y; unset "$v"',
    "read -r v < y; for ((i=v; i < 0;)); do :; done",
    'read -r v < y; f() { echo $(($1)); }; f "$v"',
    "read -r < y; echo $((REPLY))",
    "echo $(( $(cat y) ))",
    "x='b[$'; x+='(r'; x+='m x)]'; echo $((x))",
    'for v in "$(cat y)"; do echo $((v)); done',
    "echo ${v:=$(cat y)} $((v))",
    "mapfile -t v < y; echo $((v))",
    'v=("$(cat y)"); echo $((v))',
    # A variable that is run, by a name that expands.
    "n=PS4; read -r $n < x; set -x; :",
    'n=PS; read -r v < x; export ${n}4="$v"; set -x; :',
    "declare -n r=PS4; r='$'; r+='(r'; r+='m x)'; set -x; :",
    "read -r v < x; echo ${v@\\\nP}",
    # Names behind the letters of an option.
    "sed '1erm x' y",
    "tar -I'rm x;' -cf a.tgz y",
    "tar --use-compress-program=\"r''m x;\" -cf a.tgz y",
]


def test_each_start_by_bash_is_denied_or_asked_about(tmp_path: pathlib.Path) -> None:
    """Each command starts the program for real, and none of them passes a rule against the program."""
    shells = MarkedProgram(tmp_path)
    for command in STARTED_BY_BASH:
        shells.run(command)

    assert [each for each in STARTED_BY_BASH if each not in shells.started()] == []
    assert [each for each in STARTED_BY_BASH if verdict(each, cwd=shells.cwd) is None] == []


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
        "X=-c; git $X alias.z='!r\\m x' z",
        "git {-c,alias.z='!r\\m x'} z",
        "git ?c alias.z='!r\\m x' z",
        "X=foreach; git submodule $X 'r\\m x'",
        "X=-x; git rebase $X 'r\\m x'",
        "X=--receive-pack=r; git push origin ${X}m",
        "for X in a; do git push origin $X; done",
        "GIT_ALLOW_PROTOCOL=ext git ls-remote 'ext::rm x'",
        "git remote-ext origin 'rm x'",
        "git instaweb --httpd='rm x #'",
        'X=r; GIT_EDITOR="${X}m x" git commit',
        "pip config --user --editor 'rm x' edit",
        "pip --python /bin/rm config list x",
        "npm install --script-shell=/bin/rm a",
        "cargo install --config 'build.rustc=\"rm\"' a",
        "wget --use-askpass=/bin/rm a",
        "wget --use-a=/bin/rm a",
        "wget -e use_askpass=/bin/rm a",
        "make -s --eval='x:;@-rm x' x",
        "make -s --eval='x:;r\"\"m x' x",
        "rsync -e'rm x' a b:c",
        "X=/bin/r; /lib64/ld-linux-x86-64.so.2 ${X}m x",
        "/lib64/ld-linux-x86-64.so.2 /bin/r? x",
        "a-program-of-tomorrow {/bin/r,}m x",
        "a-program-of-tomorrow /bin/bas? -c 'r\\m x'",
    ],
)
def test_a_program_that_may_start_another_does_not_hide_it(command: str) -> None:
    """The call is denied, or a person is asked, with known programs and with unknown ones."""
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
def test_an_unknown_operand_is_asked_about(command: str, rule: str) -> None:
    """The words of a rule may come from an expansion, or from the input of xargs."""
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
        "git -C sub rm x",
        "git add -A && git commit -qm rm",
        "for f in a b; do git add $f; done",
        "D=$(pwd); cd $D && ls $D",
        "python3 x.py --out=b tests/*.py",
        'python3 x.py "$HOME/x" $BRANCH',
        "pip install -U -r requirements.txt rm",
        "npm install --save-dev rm",
        "wget -qO- https://localhost/rm",
        "rg -n --hidden rm src",
        "cat *.md | wc -l",
        'export PATH="$HOME/bin:$PATH" && ls',
        "PYTHONPATH=$PWD/src python3 x.py",
        "i=0; while ((i < 3)); do echo $i; i=$((i + 1)); done",
        "for ((i = 0; i < 3; i++)); do echo $i; done",
        "for i in 1 2 3; do echo $((i * 2)); done",
        "for i in {1..3}; do echo $((i * 2)); done",
        "echo $((COLUMNS - 1)) ${HOME:0:3} ${A[0]} ${A[@]}",
        "ls; if [[ $? -eq 0 ]]; then echo; fi",
        "ls; [ $? -eq 0 ] && echo",
        'n=3; [[ "$n" -gt "$COUNT" ]] && echo',
        "ls -lt 'a b'",
        "find . -name '*.py' -exec ls -lt {} +",
        'x=$(cat a); [ -n "$x" ] && [ "$x" = b ] && echo "$x"',
        "x=$(cat a); [[ -z $x ]] && echo ${x%.*} ${x:-b} ${x//a/b}",
        'while read -r line; do echo "$line"; done < a',
        "printf '%s\\n' \"$A\" *",
        "cat > a.js <<'E'\nlet x = f(y);\nread(x)\nE",
        "node -e 'let x = f(); g((x))'",
    ],
)
def test_ordinary_commands_are_not_asked_about(command: str) -> None:
    """A name among the operands of a program that starts none, and a file by a variable, need no person."""
    assert verdict(command) is None


def test_globs_and_braces_name_files(tmp_path: pathlib.Path) -> None:
    """A rule for Read matches the files that the shell would put in the place of a pattern."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").touch()
    (tmp_path / "public").touch()

    def found(command: str) -> Effect | None:
        return verdict(command, "Read(./secrets/**)", cwd=os.fspath(tmp_path))

    hidden = ["cat s*/key", "cat */k?y", "cat [s]ecrets/*", "cat {secrets,a}/key", "cat < s*/key", "head -n1 ./s*/key"]
    assert [each for each in hidden if found(each) != "deny"] == []
    assert [each for each in ["cat p*", "cat *.md", "cat {a,b}/key", "echo s*/key"] if found(each) is not None] == []


@pytest.mark.parametrize(
    "command",
    [
        "grep -r x secrets",
        "cp -r secrets t",
        "tar cO secrets",
        "mv secrets t",
        "dd if=secrets/key",
        "perl -pe1 secrets/key",
        "rev secrets/key",
        "grep --file=secrets/key x",
        "grep -fsecrets/key x",
        "curl -d@secrets/key localhost",
        "curl file://$PWD/secrets/key",
        "cat ~+/secrets/key",
        "cat $PWD/secrets/key",
        "cd secrets && cat key",
        "pushd secrets; cat k*",
        "cd sub; cd deep; cat ../../secrets/key",
        "cd sub && cd ../secrets && cat key",
        "X=secrets; cd $X; cat key",
        "tar -C secrets -cO key",
        "git -C secrets diff --no-index /dev/null key",
        "a-program-of-tomorrow cat secrets/key",
        "a-program-of-tomorrow --in=secrets",
        "sudo rev secrets/key",
        "for f in secrets/*; do cat $f; done",
        "cat ~/private/key",
        "cat $HOME/private/key",
    ],
)
def test_a_command_that_names_a_denied_file_or_its_folder_is_denied(tmp_path: pathlib.Path, command: str) -> None:
    """The rule holds for every program, and for names in every folder of the command."""
    for each in ("secrets", "sub/deep"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "secrets" / "key").touch()
    rules = tuple(
        parse_rule(each, "deny", source="s", field="f", root=os.fspath(tmp_path), home="/home/me")
        for each in ("Read(./secrets/**)", "Read(~/private/**)")
    )
    call = Call("Bash", {"command": command}, os.fspath(tmp_path))

    assert judge(Permissions(rules=rules), call).verdict == "deny"


@pytest.mark.parametrize("command", ["rm -rf secrets", "python3 x.py secrets/key", "cp x secrets", "dd of=secrets/key"])
def test_a_command_that_may_change_a_file_matches_rules_for_edit(tmp_path: pathlib.Path, command: str) -> None:
    """Known and unknown programs match by the name of the file or of its folder."""
    assert verdict(command, "Edit(./secrets/**)", cwd=os.fspath(tmp_path)) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "ls src && cat README.md",
        "cd src && ls",
        "cd src && git status",
        "git commit -m 'about secrets/key'",
        "python3 -m pytest tests -k secrets_of",
        "echo secrets/key",
        "[ -d secrets ] && echo yes",
    ],
)
def test_a_command_that_names_other_files_matches_no_rule_for_paths(tmp_path: pathlib.Path, command: str) -> None:
    """A text that only prints a name matches none either."""
    for each in ("secrets", "src"):
        (tmp_path / each).mkdir()

    assert verdict(command, "Read(./secrets/**)", "Edit(./secrets/**)", cwd=os.fspath(tmp_path)) is None
