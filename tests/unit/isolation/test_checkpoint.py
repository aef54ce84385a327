"""Tests of checkpoints: a checkpoint is whole or refused, and the earlier one stays until the next is whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.core.errors import Damaged, InvalidValue
from ramet.isolation.workspace import checkpoint
from tests.support.checkpoints import Checkpoint, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@given(body=st.binary(max_size=1000), version=st.integers(0, 2**63 - 1), data=st.data())
def test_a_saved_checkpoint_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, version: int, data: st.DataObject
) -> None:
    """Body, size of the JSON and version arrive; the latest checkpoint replaces the earlier one and leaves no draft."""
    file = tmp_path_factory.mktemp("kept") / "checkpoint"
    saved_checkpoint = Checkpoint(body, data.draw(st.integers(0, len(body))), version)

    checkpoint.save(file, *Checkpoint(b"earlier", 0, 1))
    checkpoint.save(file, *saved_checkpoint)

    assert load(file) == saved_checkpoint
    assert names(file.parent) == ["checkpoint"]


def test_a_missing_checkpoint_is_no_error(file: Path) -> None:
    """A run need not save a checkpoint."""
    assert load(file) is None


@given(data=st.data())
def test_one_changed_or_missing_byte_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A damaged checkpoint is refused and left unchanged."""
    file = tmp_path_factory.mktemp("damaged") / "checkpoint"
    checkpoint.save(file, *Checkpoint(b'{"a":1}blob', 7, 3))
    content = file.read_bytes()
    at = data.draw(st.integers(0, len(content) - 1))
    damaged = data.draw(
        st.one_of(
            st.just(content[:at]),
            st.just(content[:at] + bytes([content[at] ^ data.draw(st.integers(1, 255))]) + content[at + 1 :]),
            st.binary(min_size=1, max_size=10).map(lambda more: content + more),
        )
    )
    file.write_bytes(damaged)

    with pytest.raises(Damaged, match="checkpoint"):
        load(file)

    assert file.read_bytes() == damaged


def test_a_newer_format_is_distinguished_from_damage(file: Path) -> None:
    """A person does not take the checkpoint for lost."""
    checkpoint.save(file, *Checkpoint(b"", 0, 1))
    content = file.read_bytes()
    file.write_bytes(content[:8] + b"\x00\x02" + content[10:])

    with pytest.raises(Damaged, match="newer version"):
        load(file)


@pytest.mark.parametrize(
    ("saved_checkpoint", "field"),
    [
        (Checkpoint(b"abc", 4, 1), "json_size"),
        (Checkpoint(b"abc", -1, 1), "json_size"),
        (Checkpoint(b"abc", 3, -1), "version"),
        (Checkpoint(b"abc", 3, 2**63), "version"),
    ],
)
def test_an_invalid_checkpoint_is_refused(file: Path, saved_checkpoint: Checkpoint, field: str) -> None:
    """The refusal names the field before anything is written."""
    with pytest.raises(InvalidValue) as refusal:
        checkpoint.save(file, *saved_checkpoint)

    assert refusal.value.field == field
    assert names(file.parent) == []


def test_a_failed_save_keeps_the_earlier_checkpoint(file: Path, tmp_path: Path) -> None:
    """No draft is left."""
    checkpoint.save(file, *Checkpoint(b"first", 0, 1))
    script = f"""
import resource, signal
from pathlib import Path
from ramet.isolation.workspace import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
checkpoint.save(Path({str(file)!r}), bytes(5000), 0, 2)
"""

    process_result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert "File too large" in process_result.stderr
    assert load(file) == Checkpoint(b"first", 0, 1)
    assert names(tmp_path) == ["checkpoint"]


def test_a_killed_save_keeps_the_earlier_checkpoint(file: Path, tmp_path: Path) -> None:
    """The draft is no checkpoint, and `clear_drafts` removes it."""
    checkpoint.save(file, *Checkpoint(b"first", 0, 1))
    script = f"""
import os, signal
from pathlib import Path
from ramet.isolation.workspace import checkpoint
os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
checkpoint.save(Path({str(file)!r}), bytes(5000), 0, 2)
"""

    process_result = subprocess.run([sys.executable, "-c", script], check=False)

    assert process_result.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2  # noqa: PTH208 - only how many
    assert load(file) == Checkpoint(b"first", 0, 1)
    checkpoint.clear_drafts(tmp_path)
    assert names(tmp_path) == ["checkpoint"]
