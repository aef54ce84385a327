"""Tests of capabilities: all of them are dropped, and none returns."""

from __future__ import annotations

import os

import pytest

from tests.unit.isolation.linux.trying import try_each, try_one, users

SETS = "[line.split()[1].strip('0') for line in read('/proc/self/status').splitlines() if line.startswith('Cap')]"
#: A program run by uid 0 gets every capability of the bounding set, unless it may not.
IN_A_PROGRAM = (
    "subprocess.run(['grep', 'CapEff', '/proc/self/status'], capture_output=True).stdout.decode().split()[1].strip('0')"
)


@pytest.mark.parametrize("uid", users())
def test_all_capabilities_are_dropped(uid: int | None) -> None:
    """The five sets are empty; the user has all capabilities before."""
    free = try_one(SETS, uid=uid)

    assert isinstance(free, list)
    assert free[1] == free[2] == free[3] != ""
    assert try_one(SETS, behind="caps.drop_all()", uid=uid) == [""] * 5
    assert try_one("caps.read_capabilities() > 0", uid=uid) is True
    assert try_one("caps.read_capabilities()", behind="caps.drop_all()", uid=uid) == 0


@pytest.mark.parametrize("uid", users())
def test_uid_0_regains_no_capability(uid: int | None) -> None:
    assert try_one(IN_A_PROGRAM, uid=uid) != ""
    assert try_one(IN_A_PROGRAM, behind="caps.drop_all()", uid=uid) == ""
    assert try_one(IN_A_PROGRAM, behind="calls.unshare(calls.CLONE_NEWUSER); caps.drop_all()", uid=uid) == ""


@pytest.mark.parametrize("uid", users())
def test_privileged_calls_are_refused_without_capabilities(uid: int | None) -> None:
    attempts = (
        "calls.sethostname('other')",
        "calls.mount('none', '/tmp', 'tmpfs')",
        "os.chroot('/tmp')",
        "calls.prctl(calls.PR_SET_SECUREBITS, 0) or 'done'",
    )

    assert try_each(*attempts, uid=uid) == ["done"] * 4
    assert try_each(*attempts, behind="caps.drop_all()", uid=uid) == ["EPERM"] * 4


@pytest.mark.parametrize("uid", users())
def test_the_secure_bits_are_locked(uid: int | None) -> None:
    get_securebits = "calls.prctl(27)"

    assert try_one(get_securebits, uid=uid) == 0
    assert try_one(get_securebits, behind="caps.drop_all()", uid=uid) == 0b1110_1111


def test_dropping_works_without_any_capability() -> None:
    """Without CAP_SETPCAP the bounding set stays, and the other sets are empty."""
    user = users()[-1]

    assert try_one("caps.read_capabilities()", behind="caps.drop_all(); caps.drop_all()", uid=user, staged=False) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root has capabilities outside of namespaces")
def test_root_of_the_host_drops_its_capabilities() -> None:
    assert try_one("caps.read_capabilities() > 0", staged=False) is True
    assert try_one(SETS, behind="caps.drop_all()", staged=False) == [""] * 5
    assert try_one("os.setuid(60700)", behind="caps.drop_all()", staged=False) == "EPERM"
