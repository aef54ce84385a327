"""Rules for paths and the words of commands that name no file that the command opens."""

from __future__ import annotations

import os
import pathlib

import pytest

from ramet.core.policy.permissions import Effect, Permissions
from ramet.tools.permissions.evaluation import Call, judge
from ramet.tools.permissions.parsing import parse_rule

LOCKS, SECRETS, ENV, KEYS = "Edit(*.lock)", "Read(./secrets/**)", "Read(./.env)", "Read(*.pem)"


@pytest.fixture
def project(tmp_path: pathlib.Path) -> str:
    """Make a folder with files that rules are about, and others."""
    for folder in ("src", "secrets", "tests"):
        (tmp_path / folder).mkdir()
    for file in ("uv.lock", ".env", "a.pem", "src/a.py", "secrets/key", "README.md", "x"):
        (tmp_path / file).write_text("x\n")
    return os.fspath(tmp_path)


def verdict(project: str, rule: str, command: str) -> Effect | None:
    """Return the verdict of a `deny` rule on a command."""
    rules = parse_rule(rule, "deny", source="s", field="f", root=project, home="/home/me")
    return judge(Permissions(rules=(rules,)), Call("Bash", {"command": command}, project)).verdict


@pytest.mark.parametrize(
    ("rule", "command"),
    [
        (LOCKS, "git commit -m 'Update uv.lock'"),
        (LOCKS, "git commit -am 'Update uv.lock'"),
        (LOCKS, "git commit -a --message='Update uv.lock' --no-verify"),
        (LOCKS, "git add uv.lock && git commit -qm 'Update uv.lock' -m 'It is uv.lock'"),
        (LOCKS, "git commit -m \"$(cat <<'EOF'\nUpdate uv.lock\nEOF\n)\""),
        (LOCKS, "git tag -a v1 -m 'With uv.lock'"),
        (LOCKS, "git -C src commit -m 'Update uv.lock'"),
        (LOCKS, "git diff uv.lock"),
        (LOCKS, "git --no-pager diff --stat HEAD~1 -- uv.lock"),
        (LOCKS, "git log --oneline -p -- uv.lock | head -n 50"),
        (LOCKS, "git show HEAD:uv.lock"),
        (LOCKS, "git blame uv.lock; git status uv.lock; git ls-files '*.lock'"),
        (LOCKS, "git grep -n x -- uv.lock"),
        (LOCKS, "gh pr create --title 'Update uv.lock' --body 'See uv.lock'"),
        (LOCKS, "less uv.lock"),
        (LOCKS, "sort uv.lock | uniq -c"),
        (LOCKS, "sort -k2,2 -t, -nr uv.lock"),
        (LOCKS, "sed -n '1,20p' uv.lock; sed -n '/^name/,/^version/p;$=' uv.lock"),
        (LOCKS, "awk -F= '{print $1}' uv.lock"),
        (LOCKS, "find . -name '*.lock'"),
        (LOCKS, "find . -name '*.lock' -not -path './.venv/*' | wc -l"),
        (LOCKS, "find . -name '*.lock' -exec grep -l x {} +"),
        (LOCKS, "ls -la *.lock; du -sh *; stat uv.lock; wc -l *"),
        (LOCKS, "grep -rn 'uv.lock' . && rg uv.lock src"),
        (LOCKS, "python -m pytest --ignore=uv.lock"),
        (SECRETS, "git commit -m 'Read secrets/key from the vault, see @secrets/README'"),
        (SECRETS, "pytest --ignore=secrets"),
        (SECRETS, "python3 -m pytest -q --ignore secrets --cov=src tests"),
        (SECRETS, "uv run pytest --ignore=secrets"),
        (SECRETS, "grep -r x . --exclude-dir=secrets"),
        (SECRETS, "grep -rn --exclude-dir secrets --include='*.py' x ."),
        (SECRETS, "grep -rn secrets/key src README.md"),
        (SECRETS, "grep -n -e secrets/key README.md"),
        (SECRETS, "rg -n secrets/key src"),
        (SECRETS, "tar --exclude=secrets -czf a.tgz ."),
        (SECRETS, "tar czf a.tgz --exclude secrets src; tar -c --exclude secrets -f a.tar ."),
        (SECRETS, "rsync -a --exclude=secrets src/ build/"),
        (SECRETS, "ruff check --exclude=secrets ."),
        (SECRETS, "pip install secrets"),
        (SECRETS, "python -m pip install -U secrets 'secrets>=1.0'"),
        (SECRETS, "npm install --save-dev secrets && uv add secrets"),
        (SECRETS, "ls secrets"),
        (SECRETS, "ls -la secrets | head"),
        (SECRETS, "ls secrets 2>/dev/null && make"),
        (SECRETS, "du -sh * | sort -h"),
        (SECRETS, "wc -l *; cat *; head -n1 s*"),
        (SECRETS, "find secrets -type f"),
        (SECRETS, "find . -path ./secrets -prune -o -type f -print"),
        (SECRETS, "git rm -r --cached secrets && git commit -m 'Forget secrets'"),
        (ENV, "git rm --cached .env"),
        (ENV, "git check-ignore -v .env"),
        (ENV, "git ls-files .env --error-unmatch"),
        (ENV, "grep -n .env .gitignore"),
        (ENV, "ls -l .env && stat -c %a .env"),
    ],
)
def test_a_word_that_names_no_opened_file_matches_no_rule(project: str, rule: str, command: str) -> None:
    """Messages, patterns, excluded names, names of packages, and files that are only listed or only read match none."""
    assert verdict(project, rule, command) is None


@pytest.mark.parametrize(
    ("rule", "command"),
    [
        *((LOCKS, f"git {each}") for each in ("checkout uv.lock", "restore uv.lock", "rm uv.lock", "mv uv.lock x")),
        (LOCKS, "git diff --output=uv.lock"),
        (LOCKS, "git log --outp uv.lock"),
        (LOCKS, "git grep -nOuv.lock x"),
        (LOCKS, "git -c core.pager=x diff uv.lock"),
        (LOCKS, "git rm --cached uv.lock -f --nothing"),
        (LOCKS, "git stash push -m x uv.lock"),
        (LOCKS, "less -o uv.lock x"),
        (LOCKS, "less '+s uv.lock' uv.lock"),
        (LOCKS, "sort -o uv.lock x"),
        (LOCKS, "sort x -uouv.lock"),
        (LOCKS, "sort --out=uv.lock x"),
        (LOCKS, "sed -i s/a/b/ uv.lock"),
        *(
            (LOCKS, f"sed -n '{each}' uv.lock")
            for each in ("w uv.lock", "/x/w uv.lock", "s/a/b/e", "/a\\/w b/p", "1e rm x")
        ),
        (LOCKS, "awk '{ print > FILENAME }' uv.lock"),
        (LOCKS, "awk -i inplace 1 uv.lock"),
        (LOCKS, "find . -name '*.lock' -delete"),
        (LOCKS, "find . -name '*.lock' -exec rm {} +"),
        (LOCKS, "find . -name '*.lock' -exec sh -c 'echo > $0' {} \\;"),
        (LOCKS, "find . -name x -fprint uv.lock"),
        (LOCKS, "find . -name '*.lock' -exec ./cat {} +"),
        (SECRETS, "jq -L secrets 'include \"key\"; .' x"),
        (LOCKS, "rm *.lock"),
        (LOCKS, "git diff > uv.lock"),
        (LOCKS, "mytool uv.lock"),
        (SECRETS, "grep x secrets/key"),
        (SECRETS, "grep -r x secrets"),
        (SECRETS, "grep -f secrets/key x"),
        (SECRETS, "grep -nfsecrets/key x"),
        (SECRETS, "grep secrets/key -e x"),
        (SECRETS, "grep -e x secrets/key"),
        (SECRETS, "grep -ne x secrets/key"),
        (SECRETS, "grep --regexp=x secrets/key"),
        (SECRETS, "grep --reg x secrets/key"),
        (SECRETS, "grep --context x secrets/key"),
        (SECRETS, "grep -- x secrets/key"),
        (SECRETS, "grep x --exclude-from=secrets/key y"),
        (SECRETS, "rg --files secrets"),
        (SECRETS, "rg -e x secrets"),
        (SECRETS, "rg --pre cat x secrets"),
        (SECRETS, "git commit -F secrets/key"),
        (SECRETS, "git commit -m x -F secrets/key"),
        (SECRETS, "git commit -qF secrets/key"),
        (SECRETS, "git commit -m x secrets/key"),
        (SECRETS, "git commit -F -m secrets/key"),
        (SECRETS, "git commit --file secrets/key"),
        (SECRETS, "git commit --unknown -m secrets/key"),
        (SECRETS, "git add secrets"),
        (SECRETS, "git -C secrets diff"),
        (SECRETS, "git show HEAD:secrets/key"),
        (SECRETS, "git diff --no-index x secrets/key"),
        (SECRETS, "git grep x secrets"),
        (SECRETS, "git rm --cached --pathspec-from-file=secrets/key"),
        (SECRETS, "git rm --cached --pathspec-from-f secrets/key"),
        (SECRETS, "git ls-files --exclude-from=secrets/key -i"),
        (SECRETS, "git check-ignore --stdin < secrets/key"),
        (SECRETS, "du --files0-from=secrets/key"),
        (SECRETS, "du -X secrets/key ."),
        (SECRETS, "tar --exclude=x -cf a.tar secrets"),
        (SECRETS, "tar -cf --exclude secrets"),
        (SECRETS, "tar cf --exclude secrets"),
        (SECRETS, "tar cff a.tar --exclude secrets"),
        (SECRETS, "git blame -n secrets/key"),
        (SECRETS, "git blame -S secrets/key x"),
        (SECRETS, "git log --pretty secrets/key"),
        (SECRETS, "git log -n 1 secrets/key"),
        (SECRETS, "git grep -n -e x -- secrets"),
        (SECRETS, "ruff check --force-exclude secrets/key"),
        (SECRETS, "mypy --ignore secrets/key"),
        (SECRETS, "eslint --ignore secrets/key"),
        (SECRETS, "grep -e{,} secrets/key"),
        (SECRETS, "git commit -{m,F} secrets/key"),
        (SECRETS, "python -m ls secrets/key"),
        (SECRETS, "uv run x.py secrets/key"),
        (SECRETS, "tar -c --exclude-from=secrets/key ."),
        (SECRETS, "pytest -c secrets/key"),
        (SECRETS, "pytest --ignore=x secrets"),
        (SECRETS, "pip install -r secrets/key"),
        (SECRETS, "pip install -rsecrets/key"),
        (SECRETS, "pip install ./secrets"),
        (SECRETS, "pip install -e secrets"),
        (SECRETS, "pip install --target secrets x"),
        (SECRETS, "npm publish secrets"),
        (SECRETS, "find secrets -type f -exec cat {} +"),
        (SECRETS, "find . -path './secrets/*' -exec cat {} +"),
        (SECRETS, "find -files0-from secrets/key"),
        (SECRETS, "sudo cat secrets/key; timeout 5 sort secrets/key"),
        (SECRETS, "wc -l secrets/key; cat secrets/*"),
        (SECRETS, "sed -n 1p secrets/key"),
        (SECRETS, "awk 1 secrets/key"),
        (SECRETS, "less secrets/key"),
        (SECRETS, "mytool --exclude-from=secrets/key"),
        (SECRETS, "cd secrets && ls | while read f; do cat $f; done"),
        (KEYS, "find . -name '*.pem' -exec cat {} +"),
    ],
)
def test_a_word_that_names_an_opened_file_is_denied(project: str, rule: str, command: str) -> None:
    """Beside an option that reads or writes, in any spelling, the words are names as before."""
    assert verdict(project, rule, command) == "deny"


@pytest.mark.parametrize(
    ("rule", "command"),
    [
        (LOCKS, "sort *"),
        (LOCKS, "git commit -m uv.lock *"),
        (LOCKS, "find . -name '*.lock' | xargs rm"),
        (LOCKS, "ls *.lock | while read f; do rm $f; done"),
        (LOCKS, "mytool -m 'Update uv.lock'"),
        (SECRETS, "grep secrets/key *.md"),
        (SECRETS, "grep secrets/key $X"),
        (SECRETS, "tar -f $X --exclude secrets -c"),
        (SECRETS, "mytool --exclude=secrets"),
        (SECRETS, "grep --unknown --exclude-dir=secrets x ."),
        (SECRETS, "ls secrets/* | xargs cat"),
        (SECRETS, "find secrets -type f > list; python x.py"),
        (SECRETS, "git ls-files -s secrets | awk '{print $2}' | git cat-file --batch"),
        (SECRETS, "ls -d secrets/* | awk '{ while ((getline l < $0) > 0) print l }'"),
        (SECRETS, "./ls secrets/key"),
        (SECRETS, "PATH=. ls secrets/key"),
        (SECRETS, "export PATH=.; grep secrets/key x"),
        (SECRETS, 'ls() { cat "$1"; }; ls secrets/key'),
        (SECRETS, 'grep () { cat "$1"; }; grep secrets/key x'),
        (SECRETS, 'function pytest { cat "$1"; }; pytest --ignore=secrets/key'),
        (SECRETS, "shopt -s expand_aliases\nalias ls=cat\nls secrets/key"),
        (SECRETS, "pytest --ignore=secrets/key $X"),
        (SECRETS, "POSIXLY_CORRECT=1 grep x -e secrets/key"),
        (SECRETS, "export POSIXLY_CORRECT; grep x -e secrets/key"),
        (SECRETS, "GIT_PAGER=x git ls-files secrets/key"),
        (SECRETS, "grep secrets/key $'-e' x"),
        (KEYS, "cat $(find . -name '*.pem')"),
        (KEYS, "cat `git ls-files '*.pem'`"),
        (KEYS, "find . -name '*.pem' -print0 | sort --files0-from=-"),
        (KEYS, "find . $X -name '*.pem'"),
    ],
)
def test_an_unclear_word_needs_a_person(project: str, rule: str, command: str) -> None:
    """Another program may take the name, the word may become an option, or the program is unknown."""
    assert verdict(project, rule, command) == "ask"
