"""`ramet` without a command: what it is, and where to begin."""

from __future__ import annotations

_TEXT = """\
ramet runs agents that spawn agents: isolated, bounded, stoppable, durable and visible.

  ramet ask "Where is the time-out set?"   answer a question about this folder; needs no key
  ramet init my-project                    write an agent, a tool and a test to begin with
  ramet ps                                 list what runs; ramet logs ID -f follows a run
  ramet ui                                 watch agents in a browser, and steer them
  ramet doctor                             show what works on this machine

With a model of a provider: ramet ask --model anthropic:claude-sonnet-5-5 "…" (and ANTHROPIC_API_KEY)

All commands: ramet --help. Options of one: ramet ask --help. The guides: docs/, in the source tree.
"""


def print_overview() -> int:
    """Print the page."""
    print(_TEXT, end="")
    return 0
