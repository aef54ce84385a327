"""Tables of known programs: how they use the files that their words name, and the forms of their options.

The options are those of GNU, git and ripgrep.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NO_MATCH = re.compile(r"(?!)")
#: A requirement that is no file: a name without dots and slashes, and the wanted versions.
PACKAGE = re.compile(r"[A-Za-z0-9][\w-]*(\[[\w,-]*\])?([=<>~!^@][\w.*,=<>~!^@-]*)?\Z")
ANY = re.compile(r".*\Z", re.DOTALL)
#: Scripts of sed that only print, and of awk that start and write nothing.
_PRINTING_SCRIPT = re.compile(r"(?:[\d$,;! pdq=]|/[^/\\\n]*/I?)*\Z")
_READING_SCRIPT = re.compile(r"((?!system|getline)[^>|@])*\Z")
#: Programs that read files and change none.
READERS = frozenset(
    "base32 base64 bat cat cksum cmp comm cut diff du egrep expand fgrep file fmt fold grep head hexdump jq ls"
    " md5sum more nl od paste pr realpath rev rg sha1sum sha256sum sha512sum source stat strings tac tail tr wc"
    " zcat .".split()
)
#: Programs that change files, and do not show their contents.
CHANGERS = frozenset("chgrp chmod chown mkdir rm rmdir shred touch truncate unlink".split())
#: Programs that open no file that their words name.
NEITHER = frozenset(
    ": [ [[ alias basename break cd continue declare dirname echo exit export false kill let local popd printf pushd"
    " pwd read readonly return seq set shift shopt sleep test trap true type typeset umask unalias unset wait"
    " which".split()
)
#: Programs that read no file inside of a named folder.
FLAT = frozenset(
    "awk base32 base64 cat cksum cmp comm cut expand fmt fold gawk head hexdump less mawk md5sum more nl od paste"
    " pr rev sed sha1sum sha256sum sha512sum sort strings tac tail wc".split()
)


class Grammar(NamedTuple):
    """The use of files by a program, and the forms of its options.

    `texts` take a value that is no file, `values` one that may be. With any other option all words count as files,
    unless the grammar is `loose`: then only the words that such an option may take count.
    """

    reads: bool = True
    changes: bool = False
    flags: str = ""  #: letters of options without a value
    texts: str = ""  #: letters
    values: str = ""  #: letters
    attached_values: str = ""  #: letters whose value is never the next word
    long_flags: str = ""
    long_texts: str = ""
    long_values: str = ""
    patterns: str = ""  #: options that replace the first operand
    first: re.Pattern[str] | None = None  #: the first operand is no file if it matches
    packages: bool = False  #: operands that may be package names are package names
    loose: bool = False
    suspects: re.Pattern[str] = _NO_MATCH  #: words of a loose grammar with which all words count
    required_option: str = ""  #: an option without which all words count
    is_sure: bool = False  #: no option adds reads or changes
    bundle: bool = False  #: the first word may be letters without a dash, as for tar


_TAR = Grammar(changes=True, flags="cxtruvzjJkmhpPwOS", long_texts="--exclude", loose=True, bundle=True)
_LINTER = Grammar(changes=True, loose=True)
_LISTING = Grammar(reads=False, loose=True, is_sure=True)
_GREP = Grammar(
    flags="abchHiIlLnoqrRsTUvVwxyzCEFGPZ0123456789",
    texts="ABmDde",
    values="f",
    long_flags="--color --colour --count --ignore-case --no-ignore-case --invert-match --word-regexp --line-regexp"
    " --line-number --with-filename --no-filename --no-messages --quiet --silent --files-with-matches"
    " --files-without-match --only-matching --recursive --dereference-recursive --text --null --null-data"
    " --extended-regexp --fixed-strings --basic-regexp --perl-regexp --byte-offset --line-buffered --initial-tab"
    " --binary-files --max-count --after-context --before-context --context --directories --help --version",
    long_texts="--include --exclude --exclude-dir --regexp",
    long_values="--file --exclude-from",
    patterns="-e -f --regexp --file",
    first=ANY,
)
_RIPGREP = Grammar(
    flags="acFhHiIlLnNopqsSuUvVwxzP0",
    texts="ABCMdEegjmrtT",
    values="f",
    long_flags="--hidden --no-ignore --no-ignore-vcs --count --count-matches --files --files-with-matches"
    " --files-without-match --ignore-case --smart-case --case-sensitive --fixed-strings --word-regexp --line-regexp"
    " --line-number --no-line-number --multiline --multiline-dotall --json --heading --no-heading --vimgrep"
    " --only-matching --follow --invert-match --with-filename --no-filename --null --trim --stats --pcre2 --text"
    " --type-list --version --help",
    long_texts="--glob --iglob --type --type-not --regexp --replace --max-depth --max-count --context --after-context"
    " --before-context --color --sort --sortr --max-columns --max-filesize --threads",
    long_values="--file --ignore-file",
    patterns="-e -f --regexp --file --files --type-list",
    first=ANY,
)
_PYTEST = Grammar(
    changes=True,
    flags="vqxslh",
    texts="kmrpnW",
    values="co",
    long_texts="--ignore --ignore-glob --deselect --maxfail --durations --tb",
    long_values="--rootdir --confcutdir --basetemp --junitxml",
    loose=True,
)
PROGRAMS = {
    "awk": Grammar(texts="Fv", first=_READING_SCRIPT),
    "bsdtar": _TAR,
    "du": Grammar(
        reads=False,
        flags="abcDhHkLlmPsSx0",
        texts="dtB",
        long_flags="--all --apparent-size --bytes --total --dereference --human-readable --si --summarize"
        " --one-file-system --max-depth --time --separate-dirs --block-size --threshold",
        long_texts="--exclude",
        is_sure=True,
    ),
    "egrep": _GREP,
    "fgrep": _GREP,
    "gawk": Grammar(texts="Fv", first=_READING_SCRIPT),
    "grep": _GREP,
    "less": Grammar(flags="eEfFgGiIJmMnNqQrRsSuUwWX~", loose=True, suspects=re.compile(r"[-+]")),
    "ls": _LISTING,
    "mawk": Grammar(texts="Fv", first=_READING_SCRIPT),
    "py.test": _PYTEST,
    "pytest": _PYTEST,
    "readlink": _LISTING,
    "realpath": _LISTING,
    "rg": _RIPGREP,
    "rsync": Grammar(
        changes=True,
        flags="avzrtpgoDnhPLHAXSuxcqWiRlCk",
        long_flags="--archive --verbose --compress --recursive --delete --dry-run --progress --stats",
        long_texts="--exclude --include",
        loose=True,
    ),
    "sed": Grammar(flags="nErsuz", long_flags="--quiet --silent --regexp-extended", first=_PRINTING_SCRIPT),
    "sort": Grammar(
        flags="bcCdfghiMnrRsuVz0123456789",
        texts="kt",
        long_flags="--reverse --numeric-sort --unique --ignore-case --version-sort --human-numeric-sort --stable"
        " --check --key --field-separator --ignore-leading-blanks --general-numeric-sort --month-sort --random-sort",
    ),
    "stat": _LISTING,
    "tar": _TAR,
    "tree": Grammar(reads=False, flags="adfilpsuhgDFqNQrtcxvACS", texts="LPI", long_flags="--dirsfirst --prune --du"),
} | {
    program: _LINTER._replace(long_texts=texts)
    for program, texts in {
        "bandit": "--exclude",
        "black": "--exclude --extend-exclude",
        "eslint": "--ignore-pattern",
        "flake8": "--exclude --extend-exclude --ignore --extend-ignore",
        "isort": "--skip --extend-skip --skip-glob",
        "mypy": "--exclude",
        "pylint": "--ignore --ignore-patterns --ignore-paths",
        "ruff": "--exclude --extend-exclude --ignore --extend-ignore",
    }.items()
}

_PACKAGES = Grammar(
    changes=True,
    flags="UqvyDEgS",
    long_flags="--yes --quiet --verbose --dev --global --force --upgrade --user --no-cache --no-cache-dir --save"
    " --save-dev --save-exact --no-save --no-install-recommends --no-audit --no-fund --no-deps --pre",
    packages=True,
    loose=True,
)
#: Options with which a reading git command writes a file, or starts an editor.
_OUTPUT = re.compile(r"-[^-]*O|--o(?!neline\Z|nly-matching\Z|r\Z)")
_COMPARING = Grammar(
    texts="SG",
    long_flags="--format --pretty",
    long_texts="--grep --author --committer --since --until --after --before --date --max-count",
    loose=True,
    suspects=_OUTPUT,
)
_MESSAGE = Grammar(
    flags="aespqvonzifd",
    texts="m",
    values="FtCc",
    attached_values="uS",
    long_flags="--all --amend --no-edit --no-verify --signoff --quiet --verbose --allow-empty --annotate"
    " --force --only",
    long_texts="--message --author --date --trailer",
    long_values="--file --template --fixup --squash --reuse-message --reedit-message",
    loose=True,
)
_COMMENT = Grammar(changes=True, texts="tb", values="F", long_texts="--title --body", loose=True)
#: Programs whose first words select what they do.
SUBCOMMANDS = (
    {f"git {each}": _COMPARING for each in "diff log rev-list shortlog show whatchanged".split()}
    | {f"git {each}": _MESSAGE for each in ("commit", "tag")}
    | {f"git {each}": _MESSAGE._replace(changes=True) for each in ("merge", "notes", "stash")}
    | {f"git {each}": Grammar(loose=True) for each in ("add", "describe", "ls-tree", "rev-parse", "stage", "status")}
    | {
        "git blame": Grammar(loose=True, suspects=_OUTPUT),
        "git check-ignore": Grammar(
            reads=False, flags="qvzn", long_flags="--quiet --verbose --stdin --non-matching --no-index"
        ),
        "git grep": _GREP._replace(
            flags="aiIvwhHEGPFnlLzcpWqor0123456789",
            texts="eABCm",
            long_flags=f"{_GREP.long_flags} --cached --untracked --no-index --and --or --not --all-match --name-only"
            " --show-function --function-context --heading --break --recurse-submodules --exclude-standard",
            long_texts="",
            long_values="",
            patterns="-e -f",
        ),
        "git ls-files": Grammar(
            reads=False,
            flags="cdomistuzvkf",
            texts="x",
            long_flags="--cached --deleted --others --modified --stage --exclude-standard --error-unmatch --full-name"
            " --directory --ignored --killed --unmerged --eol --deduplicate --recurse-submodules --abbrev",
            long_texts="--exclude",
        ),
        "git rm": Grammar(
            reads=False,
            flags="fnrq",
            long_flags="--cached --force --dry-run --ignore-unmatch --quiet --sparse",
            required_option="--cached",
        ),
    }
    | {f"gh {kind} {each}": _COMMENT for kind in ("issue", "pr") for each in ("comment", "create", "edit", "review")}
    | {
        f"{program} {each}": _PACKAGES
        for program, subcommands in {
            "pip": "install uninstall download show",
            "pip3": "install uninstall download show",
            "uv": "add remove",
            "uv pip": "install uninstall show",
            "npm": "install i add uninstall remove view",
            "yarn": "add remove",
            "pnpm": "add install remove",
            "cargo": "add install remove",
            "apt": "install remove show",
            "apt-get": "install remove",
            "brew": "install uninstall info",
        }.items()
        for each in subcommands.split()
    }
)
