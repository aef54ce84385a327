"""Sessions of Gemini CLI, which finds one again only in another minute than that in which it began."""

from __future__ import annotations

from pathlib import Path

#: A minute in which no session begins. Gemini CLI 0.61 names the recording of a session by the minute and the session.
_EARLIER = "session-2000-01-01T00-00-"
_ID_CHARACTERS = 8


def rename_recordings(home: Path) -> None:
    """Name the recordings of sessions as if these had begun long ago; do nothing where there are none.

    Loading a session begins a recording, named by the present minute: in the minute in which the session began that is
    its own file, and the conversation in it would be lost.
    """
    for path in home.glob(".gemini/tmp/*/chats/session-*.jsonl"):
        if not path.is_symlink():
            path.rename(path.with_name(f"{_EARLIER}{path.stem[-_ID_CHARACTERS:]}.jsonl"))
