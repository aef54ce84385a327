"""Tests of the ids of a process inside a user namespace."""

from __future__ import annotations

import pytest

from tests.unit.isolation.linux.trying import try_each, try_one, users

ENTER = "uid, gid = os.getuid(), os.getgid(); calls.unshare(calls.CLONE_NEWUSER); "


@pytest.mark.parametrize("uid", users())
def test_one_user_and_one_group_are_mapped(uid: int | None) -> None:
    ids_expression = "[os.getuid(), os.getgid()]"

    assert try_one(ids_expression, behind=ENTER + "ids.map_ids(65534, 65533, uid, gid)", uid=uid, staged=False) == [
        65534,
        65533,
    ]
    assert try_one(ids_expression, behind=ENTER + "ids.map_ids(0, 0, uid, gid)", uid=uid, staged=False) == [0, 0]
    assert (
        try_one("read('/proc/self/setgroups')", behind=ENTER + "ids.map_ids(0, 0, uid, gid)", uid=uid, staged=False)
        == "deny\n"
    )


@pytest.mark.parametrize("uid", users())
def test_no_other_user_or_group_can_be_assumed(uid: int | None) -> None:
    """The process is root of a namespace that maps one user; the control changes to that user."""
    attempts = ("os.setuid(0)", "os.setuid(1)", "os.setgid(1)", "os.setgroups([1])")

    results = try_each(*attempts, behind=ENTER + "ids.map_ids(0, 0, uid, gid)", uid=uid, staged=False)

    assert results == ["done", "EINVAL", "EINVAL", "EPERM"]


@pytest.mark.parametrize("uid", users())
def test_ids_that_are_not_the_callers_own_are_refused(uid: int | None) -> None:
    attempts = ("ids.map_ids(0, 0, uid + 1, gid)", "ids.map_ids(0, 0, uid, gid + 1)", "ids.map_ids(0, 0, uid, gid)")

    assert try_each(*attempts, behind=ENTER, uid=uid, staged=False) == ["EPERM", "EPERM", "done"]


@pytest.mark.parametrize("uid", users())
def test_mapping_ids_makes_a_process_dumpable(uid: int | None) -> None:
    """A process that dropped its uid is not dumpable, and root owns its files in `/proc`."""
    hidden = ENTER + "calls.set_dumpable(False)"
    direct = "write('/proc/self/uid_map', f'0 {uid} 1')"

    if users()[-1] == uid or uid is not None:  # root owns them either way
        assert try_one(direct, behind=hidden, uid=uid, staged=False) in ("EACCES", "EPERM")
    assert try_one("ids.map_ids(0, 0, uid, gid)", behind=hidden, uid=uid, staged=False) == "done"


def test_an_error_names_the_file_and_the_line() -> None:
    result = try_one("str(problem)", behind=ENTER + _CATCH_PROBLEM, staged=False)

    assert result == "[Errno 1] writing '0 4242 1': Operation not permitted: '/proc/self/uid_map'"


_CATCH_PROBLEM = """
try:
    ids.map_ids(0, 0, 4242, 4242)
except OSError as error:
    problem = error
"""
