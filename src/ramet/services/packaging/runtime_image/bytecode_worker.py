"""Compiles sources for the place that they will have, in a process of its own; the standard library alone."""

from __future__ import annotations

import json
import marshal
import sys
import warnings
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

_UNCHECKED = 0b01  #: bytecode of this source, which nobody looks at any more (PEP 552)


def main() -> None:
    """For each `[source, place, out]` on stdin; what is no Python of this version is passed over."""
    warnings.simplefilter("ignore")
    for source, place, out in json.load(sys.stdin):
        data = Path(source).read_bytes()
        try:
            code = compile(data, place, "exec", dont_inherit=True, optimize=0)
        except (SyntaxError, ValueError):
            continue
        head = MAGIC_NUMBER + _UNCHECKED.to_bytes(4, "little") + source_hash(data)
        Path(out).write_bytes(head + marshal.dumps(code))


if __name__ == "__main__":
    main()
