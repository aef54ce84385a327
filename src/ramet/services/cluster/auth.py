"""Authentication between kernels: an HMAC of both kernels' names, with a secret that only kernels can derive.

The secret is derived from the operator's key, which all kernels of a store share. The operator's key and all other keys
are no valid pass. A pass opens no agent: a forwarded request must contain the client's own key. A pass is valid for one
pair of kernels, and contains no time: clocks may differ.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from ramet.core.errors import Denied

#: The headers for the name and the pass of a forwarding kernel. A request with them is not forwarded again.
FROM: Final = "ramet-kernel"
PASS: Final = "ramet-kernel-pass"
_PURPOSE: Final = b"ramet: kernels of one store, 1"


class PeerAuth:
    """The passes of the kernel `own_name`."""

    def __init__(self, own_name: str, operator: str) -> None:
        self.me = own_name
        self._secret = hmac.new(operator.encode("utf-8", "surrogatepass"), _PURPOSE, hashlib.sha256).digest()

    def headers(self, receiver: str) -> dict[str, str]:
        """Return the headers of a request to the kernel `receiver`."""
        return {FROM: self.me, PASS: self._pass(self.me, receiver)}

    def check(self, headers: Mapping[str, str]) -> str:
        """Return the kernel that forwards a request, "" if none does. Raises Denied if the pass is invalid."""
        name, presented_pass = headers.get(FROM, ""), headers.get(PASS, "")
        if not name and not presented_pass:
            return ""
        if not hmac.compare_digest(presented_pass.encode(), self._pass(name, self.me).encode()):
            raise Denied("a request in the name of a kernel", "its pass was not issued by a kernel of this store")
        return name

    def _pass(self, sender: str, receiver: str) -> str:
        parts = b"\0".join(each.encode("utf-8", "surrogatepass") for each in (sender, receiver))
        return hmac.new(self._secret, parts, hashlib.sha256).hexdigest()
