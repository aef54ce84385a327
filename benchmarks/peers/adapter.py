"""Entry point of the peers' adapters: the modes of `common`, and the mode `limit N`, which `common` does not have.

`limit N` asks for N parallel children, each of which asks its model once. The limit is 5 model requests: the closest
thing to a limit of the whole tree that the project has. The figure is the number of requests that were made.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from common import main as common_main  # type: ignore[import-not-found]  # beside this file

LIMIT = 5
LATENCY_S = 0.02  #: of every reply under a limit, so that all children have asked before one is answered


def main(adapter: Any) -> None:
    """Run the mode that the command line names, and print its figures as the last line."""
    if sys.argv[1] != "limit":
        return common_main(adapter)
    print(json.dumps(asyncio.run(_count_requests(adapter(), int(sys.argv[2])))), flush=True)
    os._exit(0)


async def _count_requests(adapter: Any, children: int) -> dict[str, int]:
    await adapter.setup()
    return {"requests": await adapter.limited(children, LIMIT)}
