"""The parsers of commands on runs and schedules, of a working directory or a server. Imports nothing slow."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ramet.cli.values import address, folder, name, parse_duration, parse_int, parse_number, parse_time, window

Commands = Any  #: argparse's own type of what `add_subparsers` returns has no public name


def add_verbs(commands: Commands, statuses: str) -> None:
    """Add the parsers of all these commands."""
    for add in (_looking, _reading, _working, _repairing, _sessions, _steering, _schedule, _serve):
        add(_adder(commands, statuses))


Add = Callable[..., argparse.ArgumentParser]
#: The same as in `ramet.host.safety.inspection`, which is slow to import.
KINDS = ("intention", "decision", "output")
WHERE = "[--dir DIR | --server WHERE]"


def _adder(commands: Commands, statuses: str = "") -> Add:
    def add(
        verb: str,
        usage: str,
        words: str,
        more: str = "",
        *,
        runs: bool = False,
        bare: bool = False,
        anywhere: bool = False,
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(
            verb.rpartition(" ")[2],
            usage=f"ramet {verb} {usage}".rstrip(),
            help=words,
            description=f"{words[0].upper()}{words[1:]}.{' ' if more else ''}{more}",
            epilog=statuses if runs else None,
            formatter_class=argparse.RawDescriptionHelpFormatter if runs else argparse.HelpFormatter,
            allow_abbrev=False,
        )
        if anywhere:
            where = parser.add_mutually_exclusive_group()
            where.add_argument(
                "--dir", type=folder, help="the working directory (default: the server of RAMET_SERVER, else this one)"
            )
            where.add_argument(
                "--server", type=name, metavar="WHERE", help="a server instead: the path of its socket, or its URL"
            )
        elif not bare:
            parser.add_argument("--dir", type=folder, default=".", help="the working directory (default: this one)")
        if not bare:
            parser.add_argument("--json", action="store_true", help="one JSON object a line")
        return parser

    return add


def _looking(add: Add) -> None:
    ps = add("ps", f"[--all] {WHERE}", "list the living runs of all trees", anywhere=True)
    ps.add_argument("--all", action="store_true", help="also those that have ended")
    tree = add("tree", f"[ID] [-f] {WHERE}", "show trees: all that live, or that of a run", anywhere=True)
    tree.add_argument("id", nargs="?", type=name, metavar="ID", help="any run of the tree")
    tree.add_argument("-f", "--follow", action="store_true", help="go on showing it until its end, or Ctrl-C")
    show = add(
        "show",
        f"ID {WHERE}",
        "show one run: state, result, usage, children, open calls, mail, approvals, ports",
        anywhere=True,
    )
    show.add_argument("id", type=name, metavar="ID", help="the run")


def _reading(add: Add) -> None:
    logs = add("logs", f"ID [-f] {WHERE}", "tell what a run did, or with a root's ID what its tree did", anywhere=True)
    logs.add_argument("id", type=name, metavar="ID", help="the run")
    logs.add_argument("-f", "--follow", action="store_true", help="go on telling until its end, or Ctrl-C")
    export = add(
        "export", f"ID [--tree] {WHERE}", "write the transcript of a run to stdout, as JSON lines", anywhere=True
    )
    export.add_argument("id", type=name, metavar="ID", help="the run")
    export.add_argument("--tree", action="store_true", help="of all runs of its tree")
    passages = add(
        "passages",
        f"[filters] [--after CURSOR] [--limit N] [-f] {WHERE}",
        "list what came to the safety gates: intentions, decisions, outputs",
        "A filter that is not given does not matter; all that are given must fit.",
        anywhere=True,
    )
    passages.add_argument("--tree", type=name, metavar="ID", help="of the tree of this run")
    passages.add_argument("--run", type=name, metavar="ID", help="of this run alone")
    passages.add_argument("--path", type=name, metavar="GLOB", help="of runs at paths like main/*")
    passages.add_argument("--tool", type=name, metavar="GLOB", help="of calls of tools like Ba*")
    passages.add_argument("--kind", choices=KINDS, action="append", default=[], help="may be given more than once")
    word = passages.add_mutually_exclusive_group()
    word.add_argument("--committed", action="store_true", help="only decisions that let a call run")
    word.add_argument("--aborted", action="store_true", help="only decisions that let none run")
    passages.add_argument("--after", type=parse_int(0), default=0, metavar="CURSOR", help="go on behind this one")
    passages.add_argument("--limit", type=parse_int(1), default=100, metavar="N", help="at most (default: 100)")
    passages.add_argument("-f", "--follow", action="store_true", help="all, and what comes, until Ctrl-C")
    replay = add("replay", f"ID [--speed X] {WHERE}", "tell what happened again, with its pauses", anywhere=True)
    replay.add_argument("id", type=name, metavar="ID", help="the run, or the root of a tree")
    replay.add_argument(
        "--speed", type=parse_number, default=1.0, metavar="X", help="times as fast (default: 1); 0: at once"
    )


def _working(add: Add) -> None:
    run = add(
        "run",
        "MODULE:FUNCTION [ARG…] [options]",
        "run a function as an agent, on record",
        "Its value goes to stdout, all else to stderr.",
        runs=True,
    )
    run.add_argument("function", type=name, metavar="MODULE:FUNCTION", help="or path/to/script.py:FUNCTION")
    run.add_argument("args", nargs="*", metavar="ARG", help="its arguments, each as JSON: 3, '\"text\"', '{\"a\": 1}'")
    run.add_argument("--policy", type=name, metavar="FILE|JSON", help="what its sandbox may do; without: no sandbox")
    run.add_argument("--backend", choices=["local", "bwrap"], help="what the sandbox is made of")
    run.add_argument("--timeout", type=parse_number, metavar="S", help="seconds that it may take")
    run.add_argument("--quiet", action="store_true", help="print nothing but the value, and errors")
    resume = add(
        "resume",
        "[ID] [--dir DIR]",
        "go on with what a kernel that was killed left behind",
        "Waits for the ends and prints each result.",
        runs=True,
    )
    resume.add_argument("id", nargs="?", type=name, metavar="ID", help="only the tree of this run")
    resume.add_argument("--quiet", action="store_true", help="print nothing but results, and errors")
    gc = add(
        "gc",
        "[--older-than 7d] [--dry-run] [--keep ID]… [--dir DIR]",
        "remove trees that have ended, with all that they left",
        "What lives, or was interrupted, stays.",
    )
    gc.add_argument(
        "--older-than",
        type=parse_duration,
        default=parse_duration("7d"),
        metavar="TIME",
        help="ago (default: 7d); 0: all",
    )
    gc.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    gc.add_argument("--keep", type=name, action="append", default=[], metavar="ID", help="never the tree of this run")
    keep = add("keep", f"ID [--off] {WHERE}", "keep the tree of a run on record, whatever its time is", anywhere=True)
    keep.add_argument("id", type=name, metavar="ID", help="any run of the tree")
    keep.add_argument("--off", action="store_true", help="no longer")


def _repairing(add: Add) -> None:
    repair = add(
        "repair",
        "[--set-aside ID | --accept-loss] [--dir DIR]",
        "read all that is on record, and say what is damaged",
        "A tree that is set aside is listed and resumed no more; gc removes it when its time is up.",
    )
    what = repair.add_mutually_exclusive_group()
    what.add_argument("--set-aside", type=name, metavar="ID", help="the tree of this run, which no kernel may have")
    what.add_argument("--accept-loss", action="store_true", help="go on with a journal that lost what was committed")


def _sessions(add: Add) -> None:
    verbs = add("sessions", "list|show|rm …", "conversations on record: list, show, remove", bare=True).add_subparsers(
        dest="verb", metavar="VERB", title="verbs", prog="ramet sessions", required=True
    )
    each = _adder(verbs)
    listing = each("sessions list", f"[--limit N] {WHERE}", "list conversations, the newest first", anywhere=True)
    listing.add_argument("--limit", type=parse_int(0), default=50, metavar="N", help="at most (default: 50); 0: all")
    for verb, usage, words, more in (
        ("show", f"ID [--last N] {WHERE}", "show what was said in a conversation", ""),
        ("rm", f"ID {WHERE}", "remove a conversation, with all that its agents left", "Its id is free again then."),
    ):
        known = each(f"sessions {verb}", usage, words, more, anywhere=True)
        known.add_argument("id", type=name, metavar="ID", help="the session's id, or that of its root")
        if verb == "show":
            known.add_argument("--last", type=parse_int(1), metavar="N", help="only its last N messages")


def _steering(add: Add) -> None:
    send = add("send", f"ID TEXT [--dedupe SPAN] {WHERE}", "send a message to a run that is at work", anywhere=True)
    send.add_argument("id", type=name, metavar="ID", help="the run")
    send.add_argument("text", type=name, metavar="TEXT", help="what to say")
    send.add_argument(
        "--dedupe",
        type=window,
        metavar="SPAN",
        help="do not deliver it if an equal message of yours is younger than that, such as 60s",
    )
    stop = add("stop", f"ID {WHERE}", "stop a run and all below it", anywhere=True)
    stop.add_argument("id", type=name, metavar="ID", help="the run")
    cp = add(
        "cp",
        f"ID PATH [TO] {WHERE}",
        "copy a file out of the sandbox of a run at work",
        "Plain files only, of at most the policy's max_output_bytes.",
        anywhere=True,
    )
    cp.add_argument("id", type=name, metavar="ID", help="the run")
    cp.add_argument("path", type=name, metavar="PATH", help="the file's name below the run's workspace")
    cp.add_argument("to", nargs="?", type=name, metavar="TO", help="a new file (default: of that name, here); - stdout")
    port = add(
        "port",
        "ID [NAME] [--dir DIR]",
        "print the Unix socket that leads to a port of a run at work",
        "As in: curl --unix-socket $(ramet port ID web) http://localhost/",
    )
    port.add_argument("id", type=name, metavar="ID", help="the run")
    port.add_argument("port", nargs="?", type=name, metavar="NAME", help="of its policy's ports (default: all of them)")
    add("approvals", WHERE, "list what waits for a word: approve or deny it", anywhere=True)
    for verb, words in (("approve", "allow what a run asks for"), ("deny", "do not allow what a run asks for")):
        each = add(verb, f"ID [--reason TEXT] {WHERE}", words, anywhere=True)
        each.add_argument("id", type=name, metavar="ID", help="the approval (see ramet approvals)")
        each.add_argument("--reason", default="", metavar="TEXT", help="why")


def _schedule(add: Add) -> None:
    schedule = add("schedule", "list|add|rm|pause|resume|trigger …", "agents that run later, or again", bare=True)
    verbs = schedule.add_subparsers(dest="verb", metavar="VERB", title="verbs", prog="ramet schedule", required=True)
    each = _adder(verbs)
    each("schedule list", WHERE, "list the schedules: their next times, and how they went last", anywhere=True)
    new = each(
        "schedule add",
        "MODULE:FUNCTION [ARG…] --every|--in|--at|--cron … [options]",
        "have a function run later, or again",
        "It runs when a scheduler is at work in this folder. A server finds the function itself, and has a scheduler.",
        anywhere=True,
    )
    new.add_argument("function", type=name, metavar="MODULE:FUNCTION", help="or /path/to/script.py:FUNCTION")
    new.add_argument("args", nargs="*", metavar="ARG", help="its arguments, each as JSON")
    when = new.add_mutually_exclusive_group(required=True)
    when.add_argument("--every", type=parse_duration, metavar="TIME", help="again and again: 90, 30s, 5m, 2h, 1d")
    when.add_argument("--in", dest="after", type=parse_duration, metavar="TIME", help="once, so long from now")
    when.add_argument("--at", type=parse_time, metavar="WHEN", help="once, at a time such as 2030-01-31T08:00+01:00")
    when.add_argument("--cron", type=name, metavar="LINE", help="by the calendar; needs --tz")
    new.add_argument("--tz", type=name, metavar="ZONE", help="whose clocks a cron line means: Europe/Berlin, UTC")
    new.add_argument("--name", type=name, metavar="NAME", help="its id; without one it gets one of its own")
    new.add_argument("--repeatable", action="store_true", help="call it again where its process died in its middle")
    new.add_argument("--in-process", action="store_true", help="run it in the kernel's own process, not in a sandbox")
    for verb, words in (
        ("rm", "forget a schedule; a run that is going goes on"),
        ("pause", "begin nothing of a schedule until it is resumed"),
        ("resume", "go on with a schedule that was paused"),
        ("trigger", "run a schedule once now, beside its times"),
    ):
        known = each(f"schedule {verb}", f"ID {WHERE}", words, anywhere=True)
        known.add_argument("id", type=name, metavar="ID", help="the schedule")


def _serve(add: Add) -> None:
    serve = add(
        "serve",
        "[--config FILE] [--dir DIR] [--socket PATH | --listen HOST:PORT] [--backend NAME] "
        "[--kernel NAME] [--address URL]",
        "serve teams, agents and images to other programs",
        "Over HTTP, until it is told to stop; agents are there again when it is started again. Settings are in a file, "
        "in the environment, and in these options, which win. "
        "The operator's key is in DIR/.ramet/operator-token, or where the setting `token` says.",
        bare=True,
    )
    serve.add_argument("--config", type=name, metavar="FILE", help="default: ramet.yaml in the folder, if trusted")
    serve.add_argument("--dir", type=folder, help="the working directory (default: this one)")
    where = serve.add_mutually_exclusive_group()
    where.add_argument("--socket", type=name, metavar="PATH", help="of a Unix socket (default: DIR/.ramet/serve.sock)")
    where.add_argument("--listen", type=address, metavar="HOST:PORT", help="an address, which needs a `token`")
    serve.add_argument("--kernel", type=name, metavar="NAME", help="its name among the kernels of its store")
    serve.add_argument("--address", type=name, metavar="URL", help="where those reach it (default: where it listens)")
    serve.add_argument("--backend", type=name, metavar="NAME", help="bwrap, local, kubernetes, or one installed")
