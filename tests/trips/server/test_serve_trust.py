"""A folder's `ramet.yaml` is used only after a person has trusted the folder."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest

import ramet
from ramet.agent.files.trust import is_trusted, trust
from ramet.cli.main import main
from tests.support.serve_process import serve

TOKEN = "a-token-of-somebody-else"
#: What a stranger would write: an address, a key that the stranger knows, and agents without a sandbox.
STRANGERS = "listen: 127.0.0.1:0\ntoken: file:./tok\nrules: {sandboxed: false}\n"


@pytest.fixture
def user_dir(home: pathlib.Path) -> pathlib.Path:
    return home / ".ramet"


def write_foreign_settings(folder: pathlib.Path) -> pathlib.Path:
    """Write a stranger's settings and key into a folder, and return the file of settings."""
    (folder / "tok").write_text(f"{TOKEN}\n")
    (folder / "tok").chmod(0o600)
    file = folder / "ramet.yaml"
    file.write_text(STRANGERS)
    return file


@pytest.mark.parametrize("mode", ["dir", "here"])
def test_settings_of_an_untrusted_folder_are_refused_in_one_line(
    folder: pathlib.Path, mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is 2. The line names the file and both ways to allow it, and nothing is created in the folder."""
    file = write_foreign_settings(folder)
    if mode == "here":
        monkeypatch.chdir(folder)

    assert main(["serve", *(["--dir", str(folder)] if mode == "dir" else [])]) == 2

    out, err = capsys.readouterr()
    path_shown = str(file) if mode == "dir" else "ramet.yaml"
    assert out == ""
    assert err.startswith(f"ramet: config: '{path_shown}' is not accepted; expected ")
    assert f"ramet trust {folder if mode == 'dir' else '.'}" in err
    assert f"--config {path_shown}" in err
    assert err.count("\n") == 1
    assert not (folder / ".ramet").exists()


async def test_settings_of_a_trusted_folder_are_used(folder: pathlib.Path, user_dir: pathlib.Path) -> None:
    """A real server listens on the configured address and accepts the configured key."""
    write_foreign_settings(folder)
    trust(folder, user_dir)

    async with serve(folder) as process:
        url = next(word for word in process.line.split() if word.startswith("http://"))
        async with ramet.connect(url, TOKEN) as client:
            assert await client.list_teams() == []
        assert (await process.end(signal.SIGTERM))[0] == 0


@pytest.mark.parametrize("changed_file", ["ramet.yaml", "tok", "kube"])
def test_a_change_to_the_settings_or_a_named_file_removes_trust(
    folder: pathlib.Path, user_dir: pathlib.Path, changed_file: str
) -> None:
    """The key and the cluster's configuration decide as much as the settings do."""
    write_foreign_settings(folder).write_text(f"{STRANGERS}kubeconfig: kube\n")
    (folder / "kube").write_text("{}\n")
    trust(folder, user_dir)
    assert is_trusted(folder, user_dir)

    with (folder / changed_file).open("a") as file:
        file.write("# another\n")

    assert not is_trusted(folder, user_dir)


def test_trust_can_show_the_settings_first(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A person reads the address, the path of the key, and the rules."""
    write_foreign_settings(folder)

    assert main(["trust", str(folder), "--show"]) == 0

    out = capsys.readouterr().out
    assert "ramet.yaml: " in out
    assert "127.0.0.1:0" in out
    assert "sandboxed" in out
    assert "tok: " in out


def test_settings_that_are_not_a_regular_file_are_refused(
    folder: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe would block the command for ever."""
    os.mkfifo(folder / "ramet.yaml")

    assert main(["serve", "--dir", str(folder)]) == 2
    assert main(["trust", str(folder)]) == 1

    assert capsys.readouterr().err.splitlines()[1].endswith("ramet.yaml: it is not a regular file")


def test_a_registry_of_an_untrusted_folder_gets_no_password(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ramet images` would otherwise send any variable or file to any address."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINE", "hunter2")
    settings = "base_image: a\nregistry_url: http://127.0.0.1:1\nregistry_password: env:MINE\n"
    (tmp_path / "ramet.yaml").write_text(settings)

    assert main(["images", "runtime", "--kind", "bare"]) == 2

    err = capsys.readouterr().err
    assert err.startswith("ramet: config: 'ramet.yaml' is not accepted; expected ")
    assert "ramet trust ." in err


def test_config_check_notes_an_untrusted_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command shows the settings, since it does not use them. A trusted folder gets no note."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ramet.yaml").write_text("limits: {queue: 3}\n")

    assert main(["config", "check"]) == 0
    out, err = capsys.readouterr()
    assert "limits.queue" in out
    assert err.startswith("note: ")
    assert "ramet trust ." in err

    assert main(["trust", "."]) == 0
    capsys.readouterr()
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().err == ""
