"""The parsers of commands on runs and schedules, of a working directory or a server. Imports nothing slow."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ramet.cli.values import (
    parse_address,
    parse_duration,
    parse_folder,
    parse_int,
    parse_name,
    parse_number,
    parse_port,
    parse_time,
    parse_window,
)

Commands = Any  #: argparse's own type of what `add_subparsers` returns has no public name


def add_verbs(commands: Commands, statuses: str) -> None:
    """Add the parsers of all these commands."""
    for add in (
        _add_inspection,
        _add_event_commands,
        _add_run_commands,
        _add_repair,
        _add_sessions,
        _add_control,
        _add_schedule,
        _add_serve,
        _add_ui,
    ):
        add(adder(commands, statuses))


Add = Callable[..., argparse.ArgumentParser]
#: The same as in `ramet.host.safety.inspection`, which is slow to import.
KINDS = ("intention", "decision", "output")
WHERE = "[--dir DIR | --server WHERE]"


def adder(commands: Commands, statuses: str = "") -> Add:
    """Return a function that adds the parser of a command, `bare` or with the options of where it works."""

    def add(
        verb: str,
        usage: str,
        summary: str,
        details: str = "",
        *,
        runs: bool = False,
        bare: bool = False,
        anywhere: bool = False,
        description: str = "",
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = commands.add_parser(
            verb.rpartition(" ")[2],
            usage=f"ramet {verb} {usage}".rstrip(),
            help=summary,
            description=description or f"{summary[0].upper()}{summary[1:]}.{' ' if details else ''}{details}",
            epilog=statuses if runs else None,
            formatter_class=argparse.RawDescriptionHelpFormatter if runs else argparse.HelpFormatter,
            allow_abbrev=False,
        )
        if anywhere:
            location = parser.add_mutually_exclusive_group()
            location.add_argument(
                "--dir",
                type=parse_folder,
                help="the working directory (default: the server of RAMET_SERVER, else this one)",
            )
            location.add_argument(
                "--server",
                type=parse_name,
                metavar="WHERE",
                help="a server instead: the path of its socket, or its URL",
            )
        elif not bare:
            parser.add_argument(
                "--dir", type=parse_folder, default=".", help="the working directory (default: this one)"
            )
        if not bare:
            parser.add_argument("--json", action="store_true", help="print one JSON object per line")
        return parser

    return add


def _add_inspection(add: Add) -> None:
    ps = add("ps", f"[--all] {WHERE}", "list the runs of all trees that have not ended", anywhere=True)
    ps.add_argument("--all", action="store_true", help="also list ended runs")
    tree = add("tree", f"[ID] [-f] {WHERE}", "show all trees that have not ended, or the tree of a run", anywhere=True)
    tree.add_argument("id", nargs="?", type=parse_name, metavar="ID", help="any run of the tree")
    tree.add_argument(
        "-f", "--follow", action="store_true", help="keep showing the tree until it ends, or until Ctrl-C"
    )
    show = add(
        "show",
        f"ID {WHERE}",
        "show one run: state, result, usage, children, open calls, mail, approvals, ports",
        anywhere=True,
    )
    show.add_argument("id", type=parse_name, metavar="ID", help="the run")


def _add_event_commands(add: Add) -> None:
    logs = add(
        "logs",
        f"ID [-f] {WHERE}",
        "print what a run did, or with the ID of a root what its whole tree did",
        anywhere=True,
    )
    logs.add_argument("id", type=parse_name, metavar="ID", help="the run")
    logs.add_argument("-f", "--follow", action="store_true", help="keep printing until the run ends, or until Ctrl-C")
    export = add(
        "export", f"ID [--tree] {WHERE}", "write the transcript of a run to stdout, as JSON lines", anywhere=True
    )
    export.add_argument("id", type=parse_name, metavar="ID", help="the run")
    export.add_argument("--tree", action="store_true", help="the transcripts of all runs of its tree")
    passages = add(
        "passages",
        f"[filters] [--after CURSOR] [--limit N] [-f] {WHERE}",
        "list the events of the safety gates: intentions, decisions, outputs",
        "An event is listed if it matches all given filters.",
        anywhere=True,
    )
    passages.add_argument("--tree", type=parse_name, metavar="ID", help="only the tree of this run")
    passages.add_argument("--run", type=parse_name, metavar="ID", help="only this run")
    passages.add_argument("--path", type=parse_name, metavar="GLOB", help="only runs with a path such as main/*")
    passages.add_argument("--tool", type=parse_name, metavar="GLOB", help="only calls of tools with a name such as Ba*")
    passages.add_argument("--kind", choices=KINDS, action="append", default=[], help="only this kind; may be repeated")
    decisions = passages.add_mutually_exclusive_group()
    decisions.add_argument("--committed", action="store_true", help="only decisions that allowed a call")
    decisions.add_argument("--aborted", action="store_true", help="only decisions that refused a call")
    passages.add_argument("--after", type=parse_int(0), default=0, metavar="CURSOR", help="start after this cursor")
    passages.add_argument("--limit", type=parse_int(1), default=100, metavar="N", help="maximum number (default: 100)")
    passages.add_argument("-f", "--follow", action="store_true", help="list all events, and new ones until Ctrl-C")
    replay = add(
        "replay",
        f"ID [--speed X | --against CODE] {WHERE}",
        "print the events of a run again, or compare code with them",
        "With --against, the status is 1 if the code does not do what the journal has.",
        anywhere=True,
    )
    replay.add_argument("id", type=parse_name, metavar="ID", help="the run, or the root of a tree")
    replay.add_argument(
        "--speed", type=parse_number, default=1.0, metavar="X", help="speed factor (default: 1); 0: without pauses"
    )
    replay.add_argument(
        "--against",
        type=parse_name,
        metavar="CODE",
        help="module:function, path/to/script.py:function or an agent file: would it do the same? No model is asked, "
        "and no tool runs",
    )
    replay.add_argument(
        "--stall",
        type=parse_number,
        default=30.0,
        metavar="S",
        help="seconds without a step after which the code counts as stuck (default: 30)",
    )


def _add_run_commands(add: Add) -> None:
    run = add(
        "run",
        "MODULE:FUNCTION [ARG…] [options]",
        "run a function as an agent, and record it",
        "Its value goes to stdout, everything else to stderr.",
        runs=True,
    )
    run.add_argument("function", type=parse_name, metavar="MODULE:FUNCTION", help="or path/to/script.py:FUNCTION")
    run.add_argument("args", nargs="*", metavar="ARG", help="its arguments, each as JSON: 3, '\"text\"', '{\"a\": 1}'")
    run.add_argument(
        "--policy", type=parse_name, metavar="FILE|JSON", help="the policy of its sandbox (default: no sandbox)"
    )
    run.add_argument("--backend", choices=["local", "bwrap"], help="the kind of sandbox")
    run.add_argument("--timeout", type=parse_number, metavar="S", help="the time limit in seconds")
    run.add_argument("--quiet", action="store_true", help="print only the value and errors")
    resume = add(
        "resume",
        f"[ID] [--calls N | --usd X | …] | --all {WHERE}",
        "resume paused runs, and the trees that a killed kernel left unfinished",
        "Where a kernel runs, a run that was paused there goes on. Where none runs, unfinished trees go on in this "
        "process: it waits until they end, and prints each result. With an amount, the limit at which ID is paused is "
        "raised before; a repeated command counts once for each pause.",
        runs=True,
        anywhere=True,
    )
    resume.add_argument("id", nargs="?", type=parse_name, metavar="ID", help="only this run, or its unfinished tree")
    resume.add_argument("--all", action="store_true", help="every tree that is paused at a kernel")
    _add_amounts(resume)
    resume.add_argument("--quiet", action="store_true", help="print only results and errors")
    gc = add(
        "gc",
        "[--older-than 7d] [--dry-run] [--keep ID]… [--dir DIR]",
        "remove ended trees, with all their files and records",
        "Active and interrupted trees stay.",
    )
    gc.add_argument(
        "--older-than",
        type=parse_duration,
        default=parse_duration("7d"),
        metavar="TIME",
        help="the minimum time since their end (default: 7d); 0: all",
    )
    gc.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    gc.add_argument(
        "--keep",
        type=parse_name,
        action="append",
        default=[],
        metavar="ID",
        help="do not remove the tree of this run; may be repeated",
    )
    keep = add("keep", f"ID [--off] {WHERE}", "keep the tree of a run, whatever its age", anywhere=True)
    keep.add_argument("id", type=parse_name, metavar="ID", help="any run of the tree")
    keep.add_argument("--off", action="store_true", help="stop keeping it")


def _add_repair(add: Add) -> None:
    repair = add(
        "repair",
        "[--set-aside ID | --accept-loss] [--dir DIR]",
        "read the whole journal, and report what is damaged",
        "A tree that is set aside is no longer listed or resumed; gc removes it like an ended one.",
    )
    actions = repair.add_mutually_exclusive_group()
    actions.add_argument(
        "--set-aside", type=parse_name, metavar="ID", help="set the tree of this run aside; no kernel may own it"
    )
    actions.add_argument("--accept-loss", action="store_true", help="accept that the journal has lost committed events")


def _add_sessions(add: Add) -> None:
    verbs = add("sessions", "list|show|rm …", "list, show or remove recorded conversations", bare=True).add_subparsers(
        dest="verb", metavar="VERB", title="verbs", prog="ramet sessions", required=True
    )
    each = adder(verbs)
    listing = each("sessions list", f"[--limit N] {WHERE}", "list conversations, the newest first", anywhere=True)
    listing.add_argument(
        "--limit", type=parse_int(0), default=50, metavar="N", help="maximum number (default: 50); 0: all"
    )
    for verb, usage, summary, details in (
        ("show", f"ID [--last N] {WHERE}", "show the messages of a conversation", ""),
        (
            "rm",
            f"ID {WHERE}",
            "remove a conversation, with all files and records of its agents",
            "Its id can be used again afterwards.",
        ),
    ):
        parser = each(f"sessions {verb}", usage, summary, details, anywhere=True)
        parser.add_argument("id", type=parse_name, metavar="ID", help="the id of the session, or of its root run")
        if verb == "show":
            parser.add_argument("--last", type=parse_int(1), metavar="N", help="only the last N messages")


def _add_control(add: Add) -> None:
    send = add("send", f"ID TEXT [--dedupe SPAN] {WHERE}", "send a message to a run", anywhere=True)
    send.add_argument("id", type=parse_name, metavar="ID", help="the run")
    send.add_argument("text", type=parse_name, metavar="TEXT", help="the message")
    send.add_argument(
        "--dedupe",
        type=parse_window,
        metavar="SPAN",
        help="do not deliver the message if you sent an equal one within this time, such as 60s",
    )
    stop = add("stop", f"ID {WHERE}", "stop a run and all runs below it", anywhere=True)
    stop.add_argument("id", type=parse_name, metavar="ID", help="the run")
    more = add(
        "raise",
        f"ID --usd X | --calls N | … [--key KEY] {WHERE}",
        "add to the limits of a run, so that what waits there goes on",
        "The limits of a tree are those of its root.",
        anywhere=True,
    )
    more.add_argument("id", type=parse_name, metavar="ID", help="the run: a root, or a run with limits of its own")
    _add_amounts(more)
    more.add_argument("--seconds", type=parse_number, metavar="S", help="time")
    more.add_argument("--key", type=parse_name, metavar="KEY", help="a repeated command with the same key adds nothing")
    pause = add(
        "pause",
        f"ID | --all [--reason TEXT] [--now] {WHERE}",
        "pause a run and all runs below it",
        "What is under way ends, and nothing new begins until `ramet resume`.",
        anywhere=True,
    )
    pause.add_argument("id", nargs="?", type=parse_name, metavar="ID", help="the run")
    pause.add_argument("--all", action="store_true", help="every tree that is active now")
    pause.add_argument("--reason", default="", metavar="TEXT", help="the reason, which is on record")
    pause.add_argument("--now", action="store_true", help="cut what is under way")
    cp = add(
        "cp",
        f"ID PATH [TO] {WHERE}",
        "copy a file out of the sandbox of an active run",
        "Only regular files, of at most the max_output_bytes of the policy.",
        anywhere=True,
    )
    cp.add_argument("id", type=parse_name, metavar="ID", help="the run")
    cp.add_argument("path", type=parse_name, metavar="PATH", help="the path of the file in the workspace of the run")
    cp.add_argument(
        "to",
        nargs="?",
        type=parse_name,
        metavar="TO",
        help="a new file (default: the same name in this folder); -: stdout",
    )
    port = add(
        "port",
        "ID [NAME] [--dir DIR]",
        "print the Unix socket of a port of an active run",
        "For example: curl --unix-socket $(ramet port ID web) http://localhost/",
    )
    port.add_argument("id", type=parse_name, metavar="ID", help="the run")
    port.add_argument(
        "port", nargs="?", type=parse_name, metavar="NAME", help="a port of its policy (default: all ports)"
    )
    add("approvals", WHERE, "list the calls that wait for an approval, and the runs at limits", anywhere=True)
    for verb, summary in (
        ("approve", "approve a call of a run, or raise the limit where it waits"),
        ("deny", "deny a call of a run, or refuse its request at a limit"),
    ):
        for_run = "[--for-run] " if verb == "approve" else ""
        each = add(verb, f"ID {for_run}[--reason TEXT] {WHERE}", summary, anywhere=True)
        each.add_argument("id", type=parse_name, metavar="ID", help="the approval (see ramet approvals)")
        each.add_argument("--reason", default="", metavar="TEXT", help="the reason")
        if for_run:
            each.add_argument(
                "--for-run",
                action="store_true",
                help="also allow later calls of this run: those that ramet approvals lists below --for-run",
            )


def _add_amounts(parser: argparse.ArgumentParser) -> None:
    """Add the options of amounts that are added to limits."""
    parser.add_argument("--usd", type=parse_number, metavar="X", help="money, in US dollars")
    parser.add_argument("--tokens", type=parse_int(0), metavar="N", help="tokens, input and output")
    parser.add_argument("--calls", type=parse_int(0), metavar="N", help="model calls")
    parser.add_argument("--tool-calls", type=parse_int(0), metavar="N", help="tool calls")
    parser.add_argument("--agents", type=parse_int(0), metavar="N", help="agents started below the run")


def _add_schedule(add: Add) -> None:
    schedule = add(
        "schedule", "list|add|rm|pause|resume|trigger …", "manage agents that run later or repeatedly", bare=True
    )
    verbs = schedule.add_subparsers(dest="verb", metavar="VERB", title="verbs", prog="ramet schedule", required=True)
    each = adder(verbs)
    each("schedule list", WHERE, "list the schedules, with their next times and last results", anywhere=True)
    new = each(
        "schedule add",
        "MODULE:FUNCTION [ARG…] --every|--in|--at|--cron … [options]",
        "schedule a function to run later or repeatedly",
        "It runs only while a scheduler runs in this folder. "
        "A server imports the function itself, and has a scheduler.",
        anywhere=True,
    )
    new.add_argument("function", type=parse_name, metavar="MODULE:FUNCTION", help="or /path/to/script.py:FUNCTION")
    new.add_argument("args", nargs="*", metavar="ARG", help="its arguments, each as JSON")
    time_options = new.add_mutually_exclusive_group(required=True)
    time_options.add_argument(
        "--every", type=parse_duration, metavar="TIME", help="repeatedly, at this interval: 90, 30s, 5m, 2h, 1d"
    )
    time_options.add_argument("--in", dest="after", type=parse_duration, metavar="TIME", help="once, after this time")
    time_options.add_argument(
        "--at", type=parse_time, metavar="WHEN", help="once, at a time such as 2030-01-31T08:00+01:00"
    )
    time_options.add_argument(
        "--cron", type=parse_name, metavar="LINE", help="repeatedly, at the times of a cron line; needs --tz"
    )
    new.add_argument("--tz", type=parse_name, metavar="ZONE", help="the time zone of the cron line: Europe/Berlin, UTC")
    new.add_argument("--name", type=parse_name, metavar="NAME", help="the id of the schedule (default: a new one)")
    new.add_argument(
        "--repeatable", action="store_true", help="call the function again if its process died during a call"
    )
    new.add_argument("--in-process", action="store_true", help="run it in the kernel's own process, not in a sandbox")
    for verb, summary in (
        ("rm", "remove a schedule; a run that has started continues"),
        ("pause", "start no run of a schedule until it is resumed"),
        ("resume", "resume a paused schedule"),
        ("trigger", "run a schedule once now, in addition to its times"),
    ):
        parser = each(f"schedule {verb}", f"ID {WHERE}", summary, anywhere=True)
        parser.add_argument("id", type=parse_name, metavar="ID", help="the schedule")


def _add_serve(add: Add) -> None:
    serve = add(
        "serve",
        "[--config FILE] [--dir DIR] [--socket PATH | --listen HOST:PORT] [--backend NAME] "
        "[--kernel NAME] [--address URL]",
        "serve teams, agents and images to other programs",
        "Serves over HTTP until it is stopped. Its agents continue when it is started again. Settings come "
        "from a file, from the environment, and from these options, which take precedence. "
        "The operator's key is in DIR/.ramet/operator-token, or where the setting `token` points to.",
        bare=True,
    )
    serve.add_argument(
        "--config", type=parse_name, metavar="FILE", help="default: ramet.yaml in the folder, if trusted"
    )
    serve.add_argument("--dir", type=parse_folder, help="the working directory (default: this one)")
    location = serve.add_mutually_exclusive_group()
    location.add_argument(
        "--socket", type=parse_name, metavar="PATH", help="path of a Unix socket (default: DIR/.ramet/serve.sock)"
    )
    location.add_argument(
        "--listen", type=parse_address, metavar="HOST:PORT", help="an address; needs the setting `token`"
    )
    serve.add_argument(
        "--kernel", type=parse_name, metavar="NAME", help="the name of this kernel among the kernels of its store"
    )
    serve.add_argument(
        "--address", type=parse_name, metavar="URL", help="where other kernels reach it (default: where it listens)"
    )
    serve.add_argument(
        "--backend", type=parse_name, metavar="NAME", help="bwrap, local, kubernetes, or an installed one"
    )


def _add_ui(add: Add) -> None:
    ui = add(
        "ui",
        f"{WHERE} [--read-only] [--port N] [options]",
        "show the trees of agents in a browser, and steer them",
        "Serves a page at a port of this machine, for this user, until it is stopped. The link that it prints is the "
        "only way in: whoever has it may do all that the page can do.",
        bare=True,
    )
    location = ui.add_mutually_exclusive_group()
    location.add_argument(
        "--dir",
        type=parse_folder,
        help="the working directory (default: the server of RAMET_SERVER, else this one); without a server there, "
        "the page shows its journal",
    )
    location.add_argument(
        "--server", type=parse_name, metavar="WHERE", help="a server instead: the path of its socket, or its URL"
    )
    ui.add_argument("--read-only", action="store_true", help="refuse every request that would change something")
    ui.add_argument("--port", type=parse_port, default=0, metavar="N", help="the port (default: any free one)")
    ui.add_argument(
        "--idle",
        type=parse_int(0),
        default=60,
        metavar="MINUTES",
        help="time without a request after which the link ends, and a new one is printed (default: 60); 0: none",
    )
    ui.add_argument(
        "--allow-host",
        dest="hosts",
        type=parse_name,
        action="append",
        default=[],
        metavar="HOST",
        help="another name, or HOST:PORT, by which a proxy makes the page known; may be repeated",
    )
    ui.add_argument("--no-open", dest="browser", action="store_false", help="only print the link, and open no browser")
