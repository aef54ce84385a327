"""`python -m ramet.web.kernel_child ARGUMENTS`: `ramet ARGUMENTS` as a child that ends with its parent.

Its standard input is a pipe, of which only the parent has the other end. When the parent is gone, however it ended, the
pipe ends, and this process gets SIGTERM, as if the parent had ended it. A signal at the death of a parent would not do:
it comes for the death of a thread, and only on Linux.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading


def end_with_parent() -> None:
    """Wait for the end of the standard input, and then end this process as its parent would."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, name="ramet-parent", daemon=True).start()
    runpy.run_module("ramet", run_name="__main__", alter_sys=True)
