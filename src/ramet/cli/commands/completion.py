"""`ramet completion bash|zsh|fish`: the script with which a shell completes commands and options."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator

from ramet.cli.parser import build_parser
from ramet.cli.values import parse_attachment, parse_folder

#: Metavariables of options whose values are files.
_FILES = frozenset({"FILE", "FILE|JSON", "TAR", "TO"})


def completion(options: Namespace) -> int:
    """Print the script for a shell."""
    import shtab

    parser = build_parser()
    for action in _actions(parser):
        if action.type is parse_folder or action.metavar == "DIR":
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]  # shtab reads it
        elif action.type is parse_attachment or action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads it
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options and arguments of a parser, and of all parsers below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield from _actions(child)
