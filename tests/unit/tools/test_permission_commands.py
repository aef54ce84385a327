"""Shell commands and patterns: a rule that narrows matches a program in every spelling."""

from __future__ import annotations

import time

import pytest

from ramet.tools.permissions.command_rules import command_pattern, narrows, widens
from ramet.tools.permissions.files.file_references import references_in
from ramet.tools.permissions.shell.commands import MAX_TEXT, parse
from ramet.tools.permissions.shell.find_command import MAX_ACTIONS
from ramet.tools.permissions.shell.invocations import invocations
from tests.support.processor_time import QUADRATIC_S


@pytest.mark.parametrize(
    ("pattern", "fits", "misses"),
    [
        ("npm run build", ["npm run build"], ["npm run build --x", "npm run", "xnpm run build"]),
        ("npm run test:*", ["npm run test", "npm run test unit"], ["npm run tests", "npm run"]),
        ("ls *", ["ls", "ls -la", "ls /tmp"], ["lsof"]),
        ("ls*", ["ls", "ls -la", "lsof"], ["sl"]),
        ("git * main", ["git checkout main", "git push origin main"], ["git main", "git checkout maine"]),
        ("* --version", ["node --version", "npm x --version"], ["--version", "node --versions"]),
        ("*", ["", "anything; at all"], []),
        ("echo \\*", ["echo *"], ["echo x"]),
        ("echo \\(x\\)", ["echo (x)"], ["echo x"]),
        ("a*b*c", ["abc", "a1b2c", "abbc"], ["ab", "acb", "abcd"]),
        ("aa*aa", ["aaaa", "aaxaa"], ["aaa"]),
    ],
)
def test_a_pattern_fits_as_documented(pattern: str, fits: list[str], misses: list[str]) -> None:
    """The forms are those of Claude Code's documentation, with counterexamples."""
    matcher = command_pattern(pattern)

    assert [each for each in fits if not matcher.fits(each)] == []
    assert [each for each in misses if matcher.fits(each)] == []


@pytest.mark.parametrize(
    "command",
    [
        "rm x",
        "  rm x",
        "echo a && rm x",
        "false || rm x",
        "a; rm x",
        "a & rm x",
        "a&rm x",
        "a | rm x",
        "a |& rm x",
        "a\nrm x",
        "rm \\\n x",
        "echo $(rm x)",
        'echo "$(rm x)"',
        'echo "`rm x`"',
        "echo ${A:-$(rm x)}",
        "diff <(rm x) y",
        "tee >(rm x)",
        "(cd a; rm x)",
        "{ rm x; }",
        "! rm x",
        "if true; then rm x; fi",
        "for i in 1 2; do rm $i; done",
        "f() { rm x; }; f",
        "case x in x) rm x;; esac",
        "coproc rm x",
        "FOO=1 BAR=2 rm x",
        ">out rm x",
        "rm>out x",
        "cmd 2>&1 | rm x",
        "cmd &>/dev/null; rm x",
        "/bin/rm x",
        "r\\m x",
        "'rm' x",
        'r"m" x',
        "sudo -u bob rm x",
        "env -i A=1 rm x",
        "timeout -k 5 10 rm x",
        "nice -n 5 nohup rm x",
        "xargs -n1 rm",
        "find . -exec rm {} \\;",
        "sh -c 'ls; rm x'",
        "sudo bash -c 'rm x'",
        "eval rm x",
        "eval 'rm x'",
        "command rm x",
        "cat <<E\ndon't\nE\nrm x",
        "echo $'a\\'b'; rm x",
        "echo \"a'b\"; rm x # it's",
        "echo a#b; rm x",
        "echo ok # '\nrm x",
    ],
)
def test_a_narrowing_rule_matches_the_command(command: str) -> None:
    """One hidden use is enough for `deny` and `ask`."""
    assert narrows("rm:*", invocations(command))


@pytest.mark.parametrize(
    "command", ["echo 'rm x'", 'echo "a; rm x"', "echo rm", "rmdir x", "echo # rm x", "grep rm x", "git rm x", "a; b"]
)
def test_a_narrowing_rule_ignores_other_commands(command: str) -> None:
    """Text that is only an argument starts nothing."""
    run = invocations(command)

    assert (narrows("rm:*", run), run.unknown) == (False, False)


@pytest.mark.parametrize(
    "command",
    [
        "$R x",
        '"$@"',
        "`echo rm` x",
        "$(echo rm) x",
        "/bin/r? x",
        "{rm,x}",
        "$'rm' x",
        "r$'m' x",
        "sudo $X",
        'bash -c "$X"',
        "eval $X",
        "x=`echo \\`rm x\\``",
        "sh " + "x " * 1_000,
        'sh -c \'sh -c "sh -c \\"sh -c rm\\""\'',
        "echo " + "x" * MAX_TEXT,
        "find ." + " -exec ls {} \\;" * (MAX_ACTIONS + 1),
    ],
)
def test_an_unreadable_command_is_unknown(command: str) -> None:
    """Rules must not treat it as harmless."""
    assert invocations(command).unknown


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("npm run x", True),
        ("npm run x && ls", True),
        ("(npm run x; ls -l) | ls", True),
        ("npm run x 2>&1 >/dev/null", True),
        ("npm run x; rm y", False),
        ("npm run x\nrm y", False),
        ("npm run $(rm y)", False),
        ("npm run `rm y`", False),
        ("npm run <(rm y)", False),
        ("npm run x > package.json", False),
        ("npm run x &> y", False),
        ("npm run 'x", False),
        ("npm runx", False),
        ("PATH=. npm run x", False),
        ("/tmp/npm run x", False),
        ("sudo npm run x", False),
        ("", False),
    ],
)
def test_a_widening_rule_must_match_every_command(command: str, allowed: bool) -> None:
    """One command that no rule allows, or that cannot be read, is enough to ask."""
    assert widens(("npm run:*", "ls", "ls:*"), command) is allowed


@pytest.mark.parametrize(
    ("text", "doubtful"),
    [
        ("a[1<<2]=x", True),
        ("a[b[1<<2]]=x", True),
        ("a[[1<<2]=x", True),
        ("echo a[ ; cat <<E\nE", True),
        ("cat <<E\nE\necho a[1]", False),
        ("echo a[1] <<E\nE", False),
        ("echo [ <<E\nE", False),
        ("cat <<E\na[\nE", False),
    ],
)
def test_a_shift_in_a_subscript_is_no_here_document(text: str, doubtful: bool) -> None:
    """A shift needs `<<` after an open bracket of a name, on the same line."""
    assert parse(text).doubtful is doubtful


@pytest.mark.parametrize(
    ("word", "unknown"),
    [
        ("a[$(x)]", True),
        ("a[`x`]", True),
        ("a[[$(x)]", True),
        ("[a[b$(x)", True),
        ("a[1]$(x)", False),
        ("[]$(x)", False),
        ("$(x)[", False),
        ("BASH_ALIASES", True),
        ("BASH_CMDS", True),
        ("BASH_VERSION", False),
    ],
)
def test_a_subscript_that_starts_a_program_is_unknown(word: str, unknown: bool) -> None:
    """Arithmetic evaluates a substitution after an open bracket, with any quotes around it."""
    assert invocations(f"echo '{word}'").unknown is unknown


def test_a_widening_rule_may_contain_a_compound_command() -> None:
    """Such a rule must be exact, without a star."""
    assert widens(("npm test && rm -r out",), "npm test && rm -r out")
    assert not widens(("npm test && *",), "npm test && rm -r out")


def test_redirections_and_operands_name_files() -> None:
    """The files that a command visibly reads and writes are known."""
    files = references_in(parse("cat -n a b < c > d; sort e | tee f; echo g").commands)

    assert [each.name for each in files if each.is_read] == ["c", "a", "b", "e", "f"]
    assert [each.name for each in files if each.is_changed] == ["d", "f"]
    assert [each.name for each in references_in(parse("sort -o e f").commands) if each.is_changed] == ["e", "f"]


@pytest.mark.parametrize(
    "piece",
    [
        *("$(", "`", "(", '"', "'", "${", "a ", "\\", "sh -c ", "<<E\n", "a*", ";", "#", "(('('))", "${a:(", "$((a*"),
        *("[", "a[", "a[]", "[]", "a[\n", "a=[", "${a[", "{a[}>b ", "BASH_", "a[[`", "*", "?(", "<a[ "),
        *("$", "$\\\n", "a=(", "<<a\\\n", "a ${X:-", "a ${X:-b}", "find {} -exec ", "find -name {} -o "),
        *("sed 's e ' ", "sed 'se\te", "sed '  ", "sed sIMe"),
    ],
)
@pytest.mark.parametrize("start", ["", "cat <<E\nE\necho "])
def test_a_hostile_command_is_judged_quickly(piece: str, start: str) -> None:
    """The longest command that is judged nests or backtracks, with a here-document and without."""
    command = start + piece * ((MAX_TEXT - len(start)) // len(piece))
    start_time = time.process_time()

    calls = invocations(command)
    for pattern in ("a*a*a*a*a*a*b", "rm:*", "* --force"):
        narrows(pattern, calls)

    assert time.process_time() - start_time < QUADRATIC_S


def test_programs_that_start_each_other_are_judged_quickly() -> None:
    """A judgement that reaches the limit of work compares no more words."""
    start_time = time.process_time()

    assert invocations("x env " * (MAX_TEXT // 6)).unknown

    assert time.process_time() - start_time < QUADRATIC_S
