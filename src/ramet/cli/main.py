"""`ramet`: run one command, return one exit status, and print one line on stderr for any error."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ramet.cli.parser import build_parser
from ramet.cli.render.streams import discard_stream, prepare_streams
from ramet.core.outcome import EXIT_CODES, Status

BROKEN_PIPE = 141  #: the shell's exit status of a program that wrote to a closed pipe


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status. Only the end of the process itself passes through."""
    prepare_streams()
    try:
        status = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_CODES[Status.CANCELLED]
    except BrokenPipeError:
        discard_stream(sys.stdout)
        return BROKEN_PIPE
    except Exception as error:
        from ramet.cli.errors import report

        status = report(error)
        try:
            sys.stdout.flush()
        except OSError:
            discard_stream(sys.stdout)
        return status


def _run(argv: Sequence[str]) -> int:
    parser = build_parser()
    try:
        # Bytes that are not text in this locale cannot be in a message: they become U+FFFD here, once.
        options = parser.parse_args(
            [each.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for each in argv]
        )
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 2
    if options.version:
        print(f"ramet {_version()}")
        return 0
    match options.command:
        case "ask":
            from ramet.cli.ask.command import ask

            return ask(options)
        case "agents":
            from ramet.cli.commands.agents import agents

            return agents(options)
        case "trust":
            from ramet.cli.commands.trust import trust

            return trust(options)
        case "config":
            from ramet.cli.commands.config import config

            return config(options)
        case "images":
            from ramet.cli.commands.images import images

            return images(options)
        case "ps" | "tree" | "show":
            from ramet.cli.operate import ps

            return ps.VERBS[options.command](options)
        case "logs" | "export" | "replay":
            from ramet.cli.operate import logs

            return logs.VERBS[options.command](options)
        case "passages":
            from ramet.cli.operate.safety_events import list_gate_events

            return list_gate_events(options)
        case "run" | "resume":
            from ramet.cli import run

            return run.VERBS[options.command](options)
        case "gc" | "keep":
            from ramet.cli.operate import gc

            return gc.VERBS[options.command](options)
        case "repair":
            from ramet.cli.operate.repair import repair

            return repair(options)
        case "sessions":
            from ramet.cli.operate import sessions

            return sessions.VERBS[options.verb](options)
        case "send" | "stop" | "approve" | "deny":
            from ramet.cli.operate.control import run_control_command

            return run_control_command(options)
        case "cp":
            from ramet.cli.operate.copy import copy

            return copy(options)
        case "port":
            from ramet.cli.operate.port import port

            return port(options)
        case "approvals":
            from ramet.cli.operate.approvals import approvals

            return approvals(options)
        case "schedule":
            from ramet.cli.commands.schedule import schedule

            return schedule(options)
        case "serve":
            from ramet.cli.commands.serve import serve

            return serve(options)
        case _:
            parser.print_help(sys.stderr)
            return 2


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ramet")
    except PackageNotFoundError:  # run from a source tree
        return "(not installed)"
