"""What a pod's Python is told to do: be a module of ramet, and leave word of what it dies of."""

from __future__ import annotations

_MOST = 1000  #: bytes of last words; a node keeps 4096
#: Before anything of ramet is imported: an image may not have it, or not all of it.
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
    """The code that calls `main` of a module of what is in the folder `lib`.

    What ends it by an exception is told as the container's termination message, in one line.
    """
    return _CODE.format(most=_MOST, lib=lib, module=module)
