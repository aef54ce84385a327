"""Run one measurement here, and print its figures as one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib import import_module


def main(name: str, *arguments: str) -> None:
    """Measure `name`. Whole numbers among the arguments are passed on as numbers."""
    module = import_module(f"benchmarks.measures.{name}")
    given = [int(each) if each.isdecimal() else each for each in arguments]
    print(json.dumps(asyncio.run(module.measure(*given))), flush=True)
    os._exit(0)  # What a process of 10,000 agents takes to clean up its memory is nobody's number.


if __name__ == "__main__":
    main(*sys.argv[1:])
