"""The Python code that a pod runs: it calls a module of ramet, and reports the exception that ends it."""

from __future__ import annotations

_MOST = 1000  #: bytes of the termination message; a node keeps 4096
#: Runs before anything of ramet is imported: an image may lack ramet, or a part of it.
_CODE = """\
import sys

def leave_word(kind, error, trace):
    sys.__excepthook__(kind, error, trace)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = "".join(each if each.isprintable() else " " for each in f"{{type(error).__name__}}: {{error}}")
    with open("/dev/termination-log", "wb") as log:
        log.write(said.encode("ascii", "backslashreplace")[:{most}])

sys.excepthook = leave_word
sys.path.insert(0, {lib!r})
from {module} import main
main()
"""


def code_of(module: str, lib: str) -> str:
    """Return the code that calls `main` of a module of ramet, which is in the folder `lib`.

    If an exception ends the program, the code writes that exception as the container's termination message, in one
    line.
    """
    return _CODE.format(most=_MOST, lib=lib, module=module)
