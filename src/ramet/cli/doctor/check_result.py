"""The results of the checks of `ramet doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "limited", "missing"]


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check, for a person."""

    name: str
    state: State
    meaning: str  #: what the state means for a user
    remedy: str = ""  #: what to do, on one line; empty if nothing needs to be done

    @property
    def works(self) -> bool:
        return self.state != "missing"


def package_remedy(package: str) -> str:
    """Return the command that installs a package of the operating system."""
    return f"apt-get install {package} (or dnf, apk, pacman, brew)"
