"""`ramet`: run one command, return one exit status, and print one line on stderr for any error."""

from __future__ import annotations

import signal
import sys
from collections.abc import Coroutine, Sequence
from importlib import import_module
from typing import Any

from ramet.cli.parser import build_parser
from ramet.cli.render.streams import discard_stream, prepare_streams
from ramet.core.outcome import EXIT_CODES, Status

BROKEN_PIPE = 141  #: the shell's exit status of a program that wrote to a closed pipe
#: The function of each command, below `ramet.cli`: imported only when the command runs, so that help is instant.
_COMMANDS = {
    "agents": "commands.agents:agents",
    "approvals": "operate.approvals:approvals",
    "approve": "operate.control:run_control_command",
    "ask": "ask.command:ask",
    "completion": "commands.completion:completion",
    "config": "commands.config:config",
    "cp": "operate.copy:copy",
    "deny": "operate.control:run_control_command",
    "doctor": "doctor.doctor_command:doctor",
    "export": "operate.logs:export",
    "gc": "operate.gc:gc",
    "images": "commands.images:images",
    "init": "starter.init_command:init",
    "keep": "operate.gc:keep",
    "logs": "operate.logs:logs",
    "mcp": "commands.mcp:mcp",
    "passages": "operate.safety_events:list_gate_events",
    "pause": "operate.pause:run_pause_command",
    "port": "operate.port:port",
    "ps": "operate.ps:ps",
    "raise": "operate.control:run_control_command",
    "repair": "operate.repair:repair",
    "replay": "operate.logs:replay",
    "resume": "resumption:resume",
    "run": "run:run",
    "schedule": "commands.schedule:schedule",
    "send": "operate.control:run_control_command",
    "serve": "commands.serve:serve",
    "sessions": "operate.sessions:sessions",
    "show": "operate.ps:show",
    "stop": "operate.control:run_control_command",
    "tree": "operate.ps:tree",
    "trust": "commands.trust:trust",
    "ui": "commands.ui:ui",
    "wrap": "wrap.wrap_command:wrap",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status. Only the end of the process itself passes through."""
    prepare_streams()
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # Inherited; with it, no end of a process is seen.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        return _status_of(argv)
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # Its reader has left: Python would end with status 120 when it tries again.
            discard_stream(sys.stderr)


def _status_of(argv: Sequence[str] | None) -> int:
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
        return _print_version(as_json=options.version_json)
    if options.version_json:
        print("ramet: --json: expected after a command, or with --version (see ramet --help)", file=sys.stderr)
        return 2
    if options.command is None:
        from ramet.cli.commands.overview import print_overview

        return print_overview()
    module, _, name = _COMMANDS[options.command].partition(":")
    outcome: int | Coroutine[Any, Any, int] = getattr(import_module(f"ramet.cli.{module}"), name)(options)
    if isinstance(outcome, int):
        return outcome
    import asyncio

    return asyncio.run(outcome)


def _print_version(*, as_json: bool) -> int:
    if as_json:
        from ramet.cli.commands.version_report import print_version

        return print_version(_version())
    print(f"ramet {_version()}")
    return 0


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ramet")
    except PackageNotFoundError:  # run from a source tree
        return "(not installed)"
