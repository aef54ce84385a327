"""A process that compiles sources for their later paths. It imports only the standard library."""

from __future__ import annotations

import json
import marshal
import sys
import warnings
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

_UNCHECKED = 0b01  #: unchecked hash-based bytecode: Python does not compare it with the source (PEP 552)


def main() -> None:
    """Compile each `[source, place, out]` of stdin. Files that are no Python of this version are skipped."""
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
