"""Each backend keeps every promise of the contract, for root and other users; the suite notices a broken promise."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from ramet.testing.conformance.isolation.suite import CHECKS, Check, NotHere, Violation, Workdir, run
from tests.support.users import own_user

BACKENDS = {"local": "ramet.isolation.local:LocalBackend", "bwrap": "ramet.isolation.bwrap:BwrapBackend"}
REMOTE = "tests.support.machines:MachineBackend"
ORDINARY = own_user()
PROJECT = pathlib.Path(__file__).parents[2]
#: In half of the sandboxes, an ordinary user's backend keeps the promises that root's does not show.
ANOTHER = {"RAMET_TEST_SANDBOXES": "another"} if os.environ.get("RAMET_TEST_SANDBOXES") == "one" else {}
BY_NAME = {check.__name__: check for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=BY_NAME)
@pytest.mark.parametrize("backend", BACKENDS)
async def test_a_backend_keeps_its_promises(backend: str, check: Check, tmp_path: pathlib.Path) -> None:
    try:
        await run(check, Workdir(BACKENDS[backend], tmp_path))
    except NotHere as why:
        pytest.skip(str(why))


@pytest.mark.skipif("os.getuid() != 0", reason="only root can be another machine")
@pytest.mark.parametrize("check", CHECKS, ids=BY_NAME)
async def test_a_sandbox_on_another_machine_keeps_the_contract(check: Check, tmp_path: pathlib.Path) -> None:
    """A sandbox behind a network line passes the whole suite, with no shared disk and no pid of this host."""
    try:
        await run(check, Workdir(REMOTE, tmp_path, lock_probe="tests.support.machines:eyes"))
    except NotHere as why:
        pytest.skip(str(why))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif("os.getuid() != 0", reason="only root can become somebody else")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_keeps_the_contract_for_an_ordinary_user(
    backend: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Backends pass the suite for a user without an account, who cannot enter the folder that Python is in."""
    scratch = pathlib.Path("/tmp", f"ramet-conformance-{os.getpid()}-{backend}")
    scratch.mkdir(mode=0o700)
    os.chown(scratch, ORDINARY, ORDINARY)
    try:
        result = subprocess.run(
            [
                *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *(sys.executable, "-I", "tests/security/outer.py", str(ORDINARY), sys.executable, "-m", "pytest"),
                *("-q", "-p", "no:cacheprovider", f"--basetemp={scratch}/pytest", "-k", f"promises and {backend}"),
                str(pathlib.Path(__file__).relative_to(PROJECT)),
            ],
            cwd=PROJECT,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(scratch),
                "TMPDIR": str(scratch),
                "PYTHONDONTWRITEBYTECODE": "1",
                **ANOTHER,
            },
            capture_output=True,
            text=True,
            timeout=590,
            check=False,
        )
    finally:
        subprocess.run(["rm", "-rf", str(scratch)], check=True)

    assert result.returncode == 0, result.stdout[-20_000:] + result.stderr[-2_000:]
    assert " passed" in result.stdout


@pytest.mark.parametrize(
    ("spoilt", "broken"),
    [
        ("Limitless", "memory"),
        ("Limitless", "memory_of_all_processes"),
        ("Apart", "memory_of_a_reservation"),
        ("Limitless", "processes"),
        ("Limitless", "temporary_files"),
        ("Limitless", "workspace"),
        ("Forgetful", "mounts_can_be_read_and_not_written"),
        ("Forgetful", "a_writable_mount_keeps_its_repository"),
        ("Forgetful", "secrets_are_files_in_memory"),
        ("Generous", "the_environment_has_only_the_given_variables"),
        ("Open", "two_sandboxes_do_not_see_each_other"),
        ("Lowering", "an_unavailable_level_is_refused"),
        ("Understating", "the_level_is_as_requested"),
        ("Miscounting", "exit_status"),
        ("Deaf", "signals_are_delivered"),
        ("Hasty", "kill_ends_an_unresponsive_guest"),
        ("Brutal", "kill_allows_an_orderly_end"),
        ("Untidy", "clean_up_releases_everything"),
        ("Leaking", "many_sandboxes_in_sequence_leave_nothing"),
        ("Constant", "usage_is_reported"),
        ("Silent", "output_outlives_a_process"),
        ("Blocking", "a_channel_is_a_connected_stream"),
        ("Undescribed", "descriptions"),
        ("Outside", "commands_run_in_the_same_sandbox"),
        ("Lingering", "closing_ends_all_sandboxes"),
        ("Greedy", "a_living_sandbox_is_not_reaped"),
    ],
)
async def test_the_suite_notices_a_broken_promise(
    spoilt: str, broken: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that is broken in one way fails the check of that promise, with a message."""
    monkeypatch.setattr("ramet.testing.conformance.isolation.harness.PATIENCE_S", 6)

    with pytest.raises(Violation) as violation:
        await run(BY_NAME[broken], Workdir(f"tests.conformance.spoilt:{spoilt}", tmp_path))

    assert str(violation.value)


async def test_the_base_of_the_broken_backends_is_whole(tmp_path: pathlib.Path) -> None:
    """Control: a backend that passes every call on breaks nothing."""
    await run(BY_NAME["exit_status"], Workdir("tests.conformance.spoilt:Whole", tmp_path))


async def test_a_wrong_backend_name_is_an_error(tmp_path: pathlib.Path) -> None:
    for name in ("ramet.isolation.none:Backend", "ramet.isolation.local:None_", "nonsense"):
        with pytest.raises(
            ValueError, match=r"backend: .* expected a module and the callable in it that creates a backend"
        ):
            await run(BY_NAME["exit_status"], Workdir(name, tmp_path))


def test_the_suite_needs_no_test_framework() -> None:
    """The suite imports no pytest: another machine may have none."""
    result = subprocess.run(
        [sys.executable, "-c", "import sys, ramet.testing.conformance.isolation.suite; print('pytest' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert result.stdout == "False\n"
