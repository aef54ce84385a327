"""An MCP server that stops the process that started it, and answers nothing: `stopping.py ARGUMENT…`."""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    sys.stdin.readline()
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)


if __name__ == "__main__":
    main()
