"""Passes between kernels: valid for one pair, and made only with the operator's key."""

from __future__ import annotations

import pytest

from ramet.core.errors import Denied
from ramet.services.cluster.auth import FROM, PASS, PeerAuth

TOKEN = "op_all_kernels_have_the_same_one"


def test_a_pass_opens_its_kernel_and_names_the_sender() -> None:
    """A request without a pass has no sender."""
    assert PeerAuth("two", TOKEN).check(PeerAuth("one", TOKEN).headers("two")) == "one"
    assert PeerAuth("two", TOKEN).check({}) == ""


@pytest.mark.parametrize(
    "headers",
    [
        PeerAuth("one", TOKEN).headers("three"),
        {**PeerAuth("one", TOKEN).headers("two"), FROM: "three"},
        PeerAuth("one", TOKEN + "!").headers("two"),
        {FROM: "one", PASS: TOKEN},
        {FROM: "one"},
        {PASS: PeerAuth("one", TOKEN).headers("two")[PASS]},
        {FROM: "one", PASS: "ü"},
    ],
    ids=["for another", "of another", "of another store", "the token", "none", "of nobody", "no ASCII"],
)
def test_an_invalid_pass_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(Denied):
        PeerAuth("two", TOKEN).check(headers)


def test_a_pass_does_not_reveal_the_key() -> None:
    headers = PeerAuth("one", TOKEN).headers("two")
    assert TOKEN not in "".join(headers.values())
    assert headers != PeerAuth("one", TOKEN).headers("three")
