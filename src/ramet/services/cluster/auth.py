"""How one kernel shows another that it is one: a code of its name and the other's, by a secret that only kernels make.

The secret is derived from the operator's key, which all kernels of a store share. Neither that key nor any other opens
what a pass opens, and a pass opens no agent: whoever is forwarded shows a key of their own. A pass is good for one pair
of kernels, and holds no time: clocks may differ.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from ramet.core.errors import Denied

#: Which kernel forwards, and the pass that shows it. No request that bears them is forwarded again.
FROM: Final = "ramet-kernel"
PASS: Final = "ramet-kernel-pass"
_PURPOSE: Final = b"ramet: kernels of one store, 1"


class PeerAuth:
    """The passes of the kernel `me`."""

    def __init__(self, me: str, operator: str) -> None:
        self.me = me
        self._secret = hmac.new(operator.encode("utf-8", "surrogatepass"), _PURPOSE, hashlib.sha256).digest()

    def headers(self, to: str) -> dict[str, str]:
        """What a request to another kernel bears."""
        return {FROM: self.me, PASS: self._pass(self.me, to)}

    def check(self, headers: Mapping[str, str]) -> str:
        """The kernel that forwards a request, "" if none does. Raises Denied for a pass that is none."""
        name, shown = headers.get(FROM, ""), headers.get(PASS, "")
        if not name and not shown:
            return ""
        if not hmac.compare_digest(shown.encode(), self._pass(name, self.me).encode()):
            raise Denied("a request in the name of a kernel", "its pass is none of this store's")
        return name

    def _pass(self, one: str, other: str) -> str:
        parts = b"\0".join(each.encode("utf-8", "surrogatepass") for each in (one, other))
        return hmac.new(self._secret, parts, hashlib.sha256).hexdigest()
