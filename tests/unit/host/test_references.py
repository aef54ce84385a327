"""host/serialize/references.py: a function is found again by what was written down of it, or an error says why."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ramet.core.errors import DefinitionMissing, InvalidValue
from ramet.host.serialize.references import is_reference, reference_of, resolve
from tests.trips.agents import scheduled

SCRIPT = """
from ramet.host.serialize.references import reference_of, resolve

def work():
    return __name__

class Desk:
    @staticmethod
    def rest():
        return "rested"

if __name__ == "__main__":
    for function in (work, Desk.rest):
        assert resolve(reference_of(function)) is function
        print(reference_of(function))
"""


def run(*argv: str | pathlib.Path, cwd: pathlib.Path, text: str | None = None) -> list[str]:
    """What a Python program prints, line by line."""
    path = os.pathsep.join([str(pathlib.Path.cwd() / "src"), str(cwd)])
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        input=text,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("function", [scheduled.note, scheduled.Desk.rest, os.path.join, len])
def test_what_is_found_by_its_name_comes_back(function: Callable[..., Any]) -> None:
    """Functions of modules, also those written inside a class, and built in ones."""
    reference = reference_of(function)

    assert is_reference(reference)
    assert resolve(reference) is function


def test_a_module_that_is_not_loaded_is_imported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what happens after a restart."""
    (tmp_path / "referred_to.py").write_text("def work(): return 5\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert resolve("referred_to:work")() == 5
    del sys.modules["referred_to"]


def test_a_function_of_a_script_is_found_in_its_file(tmp_path: pathlib.Path) -> None:
    """In another process, where `__main__` is something else; what the script does as a program is not done again."""
    script = tmp_path / "a script.py"
    script.write_text(SCRIPT)
    references = run(script, cwd=tmp_path)
    assert references == [f"{script}:work", f"{script}:Desk.rest"]

    work, rest = map(resolve, references)

    assert work().startswith("script_")
    assert rest() == "rested"
    assert resolve(references[0]) is work  # its module is loaded once
    assert reference_of(work) == references[0]
    del sys.modules[work.__module__]


def test_a_script_in_a_folder_below_a_link_is_one_script(tmp_path: pathlib.Path) -> None:
    """However it was called."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "script.py").write_text(SCRIPT)

    assert run("link/script.py", cwd=tmp_path) == run("real/script.py", cwd=tmp_path)


def test_a_program_that_is_a_module_is_referred_to_as_one(tmp_path: pathlib.Path) -> None:
    """`python -m package.program` has a name that can be imported."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "program.py").write_text(SCRIPT)

    assert run("-m", "package.program", cwd=tmp_path) == ["package.program:work", "package.program:Desk.rest"]


def test_what_is_typed_at_a_prompt_is_found_while_its_process_lives(tmp_path: pathlib.Path) -> None:
    """And nowhere else: a function of the same name in another process is another function."""
    (reference, _) = run("-", cwd=tmp_path, text=SCRIPT)

    assert reference.startswith("prompt-")
    with pytest.raises(DefinitionMissing, match="prompt-"):
        resolve(reference)


def decorated(function: Callable[[], None]) -> Callable[[], None]:
    """A decorator that pretends to be what it wraps."""

    @functools.wraps(function)
    def wrapper() -> None:
        function()

    return wrapper


def plain() -> None:
    """A function at the top level."""


@decorated
def wrapped() -> None:
    """One that is found as what it became."""


class Callable_:
    """An object that can be called."""

    def __call__(self) -> None:
        """Do nothing."""

    @classmethod
    def make(cls) -> None:
        """Bound to its class, a new object each time."""


def test_a_decorated_function_is_what_its_name_stands_for() -> None:
    """The wrapper at the top level is found; one around a function that has its name is not."""
    assert resolve(reference_of(wrapped)) is wrapped
    with pytest.raises(InvalidValue, match="something else"):
        reference_of(decorated(plain))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: None, "lambda"),
        (scheduled.nameless, "lambda"),
        (scheduled.make(), "inside another function"),
        (scheduled.Desk().work, "method of an object"),
        (Callable_.make, "method of an object"),
        (Callable_(), "no name of its own"),
        (functools.partial(plain), "no name of its own"),
        (5, "no name of its own"),
    ],
)
def test_what_is_found_nowhere_is_refused(function: Any, why: str) -> None:
    """At once, and not when its time has come; the refusal says what would do."""
    with pytest.raises(InvalidValue, match=why) as refusal:
        reference_of(function, field="agent")

    assert refusal.value.field == "agent"
    assert "top level" in str(refusal.value)


@pytest.mark.parametrize(
    "reference",
    ["", "module", ":function", "module:", "module:a b", "module:1", "module:f()", "module:<lambda>", None, 5],
)
def test_what_is_no_reference_is_refused(reference: Any) -> None:
    """Nothing is imported on its word."""
    with pytest.raises(InvalidValue, match="reference"):
        resolve(reference)


@pytest.mark.parametrize(
    "text", ["raise SystemError('no')", "raise SystemExit", "def (", "import no_such_module", "work = 5", ""]
)
def test_what_is_not_there_any_more_is_missing(tmp_path: pathlib.Path, text: str) -> None:
    """A file that cannot be run, a name that is gone, one that is no function: one error, and its cause."""
    script = tmp_path / "script.py"
    script.write_text(text)
    before = set(sys.modules)

    for reference in (f"{script}:work", f"{tmp_path / 'gone.py'}:work", "no.such.module:work", "os:no_such_function"):
        with pytest.raises(DefinitionMissing) as missing:
            resolve(reference)
        assert missing.value.name == reference

    loaded = [name for name in set(sys.modules) - before if name.startswith("script_")]
    assert len(loaded) == (text in ("work = 5", ""))  # what could not be run is not there by half
    for name in loaded:
        del sys.modules[name]
