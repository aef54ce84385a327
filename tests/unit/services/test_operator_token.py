"""The operator's key: made once, for its user alone, and never a weak one."""

from __future__ import annotations

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ramet.core.errors import InvalidValue
from ramet.services.server import Server, operator_token


def test_it_is_made_once_and_only_its_user_reads_it(tmp_path: Path) -> None:
    """Servers that start together have the same one, whole."""
    file = tmp_path / "operator-token"
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(lambda _: operator_token(file), range(32)))

    assert len(tokens) == 1
    assert tokens.pop() == file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("token", ["", "short", "x" * 600, "sixteen letters\n", "sechzehn Zeichen"])
def test_a_weak_one_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    """By what it should be, not by what it is."""
    with pytest.raises(InvalidValue, match="token") as refused:
        operator_token(tmp_path / "operator-token", token)
    assert token not in str(refused.value) or not token


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """Somebody may have read it already; a link is not followed."""
    file = tmp_path / "operator-token"
    operator_token(file)
    file.chmod(0o644)
    with pytest.raises(InvalidValue, match="chmod 600"):
        operator_token(file)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(InvalidValue, match="can be read"):
        operator_token(tmp_path / "link")


def test_a_socket_or_an_address(tmp_path: Path) -> None:
    """Not both."""
    with pytest.raises(InvalidValue, match="either a socket or an address"):
        Server(tmp_path, socket="a", listen=("127.0.0.1", 0))


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_what_is_not_installed_is_said(tmp_path: Path, missing: str) -> None:
    """One line, with the one that installs it; nothing is left listening."""
    program = f"import sys; sys.modules[{missing!r}] = None; from ramet.cli.main import main; sys.exit(main())"
    line = [sys.executable, "-c", program, "serve", "--dir", str(tmp_path), "--socket", str(tmp_path / "a")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "ramet: serving over HTTP needs an extra package; install it with: pip install 'ramet[server]'\n"
    )
