"""`ramet trust DIR`: show what a folder would run, and record that a person allows it."""

from __future__ import annotations

import sys
from argparse import Namespace

from rich.text import Text

from ramet.agent.files import trust as record
from ramet.cli.paths import display_path, user_dir
from ramet.cli.render.console import console
from ramet.cli.render.sanitize import sanitize


def trust(options: Namespace) -> int:
    """Show and record it; with `--show` only show it, with `--forget` remove the trust."""
    out = console(sys.stdout)
    folder, home = options.dir, user_dir()
    name = sanitize(display_path(folder))

    def say(text: str) -> None:
        out.print(Text(sanitize(text)), soft_wrap=True)

    if options.forget:
        say(f"{name} is no longer trusted." if record.untrust(folder, home) else f"{name} was not trusted.")
        return 0
    # The shown list is the recorded one: `trust` returns what it has hashed.
    would_run = record.find_runnables(folder) if options.show else record.trust(folder, home)
    for each in would_run:
        say(f"{each}")
    if options.show:
        verdict = record.trust_of(folder, home)
        say(f"{name} is {'' if verdict.is_trusted else 'not '}trusted: {verdict.reason}.")
    elif would_run:
        say(f"{name} is trusted as it is now: the above may run. Undo it with: ramet trust {name} --forget")
    else:
        say(f"{name} is trusted as it is now: it contains nothing to run.")
    return 0
