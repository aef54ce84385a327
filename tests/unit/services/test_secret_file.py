"""A secret file is read only if other users can neither change it nor read a file of this user."""

from __future__ import annotations

import os
import pathlib

import pytest

from ramet.core.errors import InvalidValue
from ramet.services.config import secret_file
from ramet.services.config.settings import MAX_SECRET, SecretReference

STRANGER, ORDINARY = 4_711, 1_000


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file with a secret that only its owner can use."""
    path = tmp_path / "token"
    path.write_text("hunter2\n")
    path.chmod(0o600)
    return path


def refusal(file: pathlib.Path) -> str:
    """Return the refusal of the file, which must not hold its content."""
    with pytest.raises(InvalidValue) as refusal:
        SecretReference("file", str(file)).read({})
    assert str(file) in str(refusal.value)
    assert "hunter2" not in str(refusal.value)
    return str(refusal.value)


def test_a_secret_file_that_others_can_write_is_refused(file: pathlib.Path) -> None:
    """Another writer would know the secret; the group counts as others."""
    for mode in (0o620, 0o602):
        file.chmod(mode)
        assert "can write it; chmod go-w" in refusal(file)


def test_a_secret_file_of_another_ordinary_user_is_refused(file: pathlib.Path) -> None:
    """The other user knows its content."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(file, STRANGER, STRANGER)

    assert f"belongs to another user ({STRANGER})" in refusal(file)


@pytest.mark.parametrize(("mode", "is_taken"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False)])
def test_a_users_own_secret_file_must_be_readable_only_by_the_user(
    file: pathlib.Path, mode: int, is_taken: bool
) -> None:
    """ssh has the same rule for its keys."""
    status = os.stat_result((0o100000 | mode, 0, 0, 1, ORDINARY, ORDINARY, 8, 0, 0, 0))

    weakness = secret_file.weakness(status, ORDINARY)

    assert (weakness == "") is is_taken
    assert is_taken or "chmod 600" in weakness


@pytest.mark.parametrize("mode", [0o644, 0o440, 0o444, 0o400])
@pytest.mark.parametrize("user", [0, ORDINARY])
def test_a_mounted_secret_of_root_is_accepted_for_every_user(mode: int, user: int) -> None:
    """A cluster mounts Secrets as files of root, for any user of the pod."""
    assert secret_file.weakness(os.stat_result((0o100000 | mode, 0, 0, 1, 0, ORDINARY, 8, 0, 0, 0)), user) == ""


def test_a_secret_is_read_through_the_links_of_a_mount(file: pathlib.Path) -> None:
    """A cluster mounts `token -> ..data/token` and `..data -> ..2026_01_01`, and swaps the second link."""
    folder = file.parent
    (folder / "..2026_01_01").mkdir()
    file.rename(folder / "..2026_01_01" / "token")
    (folder / "..data").symlink_to("..2026_01_01")
    file.symlink_to("..data/token")

    assert SecretReference("file", str(file)).read({}) == "hunter2"


def test_a_pipe_a_folder_and_a_large_file_are_refused_at_once(file: pathlib.Path) -> None:
    """Reading them would wait, or fill the memory."""
    with file.open("r+b") as large:
        large.truncate(1 << 40)
    assert f"larger than {MAX_SECRET + 2} bytes" in refusal(file)
    file.unlink()
    os.mkfifo(file, 0o600)
    assert "not a regular file" in refusal(file)
    file.unlink()
    file.mkdir()
    assert "not a regular file" in refusal(file)
