"""host/serialize/references.py: A function is found again by its reference, or an error gives the reason."""

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
    """Return the output lines of a Python program."""
    path = os.pathsep.join([str(pathlib.Path.cwd() / "src"), str(cwd)])
    process_result = subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        input=text,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process_result.returncode == 0, process_result.stderr
    return process_result.stdout.splitlines()


@pytest.mark.parametrize("function", [scheduled.note, scheduled.Desk.rest, os.path.join, len])
def test_a_named_function_is_found_again(function: Callable[..., Any]) -> None:
    """Functions of modules and classes, and built-in functions, work."""
    reference = reference_of(function)

    assert is_reference(reference)
    assert resolve(reference) is function


def test_a_module_that_is_not_loaded_is_imported(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted process has not loaded the module."""
    (tmp_path / "referred_to.py").write_text("def work(): return 5\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert resolve("referred_to:work")() == 5
    del sys.modules["referred_to"]


def test_a_function_of_a_script_is_found_in_its_file(tmp_path: pathlib.Path) -> None:
    """Another process finds the function, and the script's main part does not run again."""
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


def test_a_script_behind_a_link_has_one_reference(tmp_path: pathlib.Path) -> None:
    """The path of the call does not matter."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "script.py").write_text(SCRIPT)

    assert run("link/script.py", cwd=tmp_path) == run("real/script.py", cwd=tmp_path)


def test_a_module_that_runs_as_a_program_has_an_importable_reference(tmp_path: pathlib.Path) -> None:
    """`python -m package.program` has a name that can be imported."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "program.py").write_text(SCRIPT)

    assert run("-m", "package.program", cwd=tmp_path) == ["package.program:work", "package.program:Desk.rest"]


def test_a_function_typed_at_a_prompt_is_found_only_in_its_process(tmp_path: pathlib.Path) -> None:
    """A function of that name in another process is another function."""
    (reference, _) = run("-", cwd=tmp_path, text=SCRIPT)

    assert reference.startswith("prompt-")
    with pytest.raises(DefinitionMissing, match="prompt-"):
        resolve(reference)


def wrap(function: Callable[[], None]) -> Callable[[], None]:
    """A decorator that copies the name of the wrapped function."""

    @functools.wraps(function)
    def wrapper() -> None:
        function()

    return wrapper


def plain() -> None:
    """A function at the top level."""


@wrap
def wrapped() -> None:
    """A function that is found as its wrapper."""


class Callable_:
    """An object that can be called."""

    def __call__(self) -> None:
        """Do nothing."""

    @classmethod
    def make(cls) -> None:
        """A method bound to its class, a new object each time."""


def test_a_decorated_function_is_found_by_its_name() -> None:
    """A wrapper whose name stands for another function is refused."""
    assert resolve(reference_of(wrapped)) is wrapped
    with pytest.raises(InvalidValue, match="something else"):
        reference_of(wrap(plain))


@pytest.mark.parametrize(
    ("function", "reason"),
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
def test_a_function_that_cannot_be_found_again_is_refused(function: Any, reason: str) -> None:
    """The error comes at once and says what would be accepted."""
    with pytest.raises(InvalidValue, match=reason) as refusal:
        reference_of(function, field="agent")

    assert refusal.value.field == "agent"
    assert "top level" in str(refusal.value)


@pytest.mark.parametrize(
    "reference",
    ["", "module", ":function", "module:", "module:a b", "module:1", "module:f()", "module:<lambda>", None, 5],
)
def test_an_invalid_reference_is_refused(reference: Any) -> None:
    """Nothing is imported."""
    with pytest.raises(InvalidValue, match="reference"):
        resolve(reference)


@pytest.mark.parametrize(
    "text", ["raise SystemError('no')", "raise SystemExit", "def (", "import no_such_module", "work = 5", ""]
)
def test_a_function_that_no_longer_exists_is_missing(tmp_path: pathlib.Path, text: str) -> None:
    """A broken file, a missing name and a value that is not a function raise one error with its cause."""
    script = tmp_path / "script.py"
    script.write_text(text)
    before = set(sys.modules)

    for reference in (f"{script}:work", f"{tmp_path / 'gone.py'}:work", "no.such.module:work", "os:no_such_function"):
        with pytest.raises(DefinitionMissing) as missing:
            resolve(reference)
        assert missing.value.name == reference

    loaded_modules = [name for name in set(sys.modules) - before if name.startswith("script_")]
    assert len(loaded_modules) == (text in ("work = 5", ""))  # what could not be run is not there by half
    for name in loaded_modules:
        del sys.modules[name]
