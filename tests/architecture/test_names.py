"""Names of modules and classes keep the rules of the glossary: one name means one thing, a folder fits on a page."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "ramet"
GLOSSARY = ROOT / "docs" / "glossary.md"

MAX_MODULES = 16
#: Metaphors, bare participles and function words. A module is named by the standard term for what it is.
STOP_LIST = frozenset(
    (
        "again ahead alone answering apart asked asking begun beneath_it beside born brake brought calling checking "
        "collecting come compare deeds desk dialling door doorbell doomed early ends errands fetched forked forking "
        "found fresh furnish gating given going_on gone ground heir home housing inside intake kept leftovers left "
        "lifeline lives looking lookout made misfits moments news opened opening outfit outside owning passes passing "
        "picture places portal post printed reaching reading reuse reviving roster room rooms said seen sending sent "
        "several shelf shelves showing sights sole spares stated steering stock story survivors taken taking_up "
        "talking tape telling told travel uses vigil walls way whose working writing word words "
    ).split()
)
#: Public names of one word that are on the stop list or participles all the same, and why.
PARTICIPLES = {
    **dict.fromkeys(
        "Aborted Concluded Damaged Denied Expired Gone Lost Missed Refused".split(), "an error says what happened"
    ),
    **dict.fromkeys("Compacted Connected Ended Started".split(), "an event or a message says what happened"),
    **dict.fromkeys("Interrupted Rotated Sent Stopped".split(), "an answer, by its name in the OpenAPI document"),
    **dict.fromkeys("Namespaced Versioned".split(), "the kinds of states, as the reference has them"),
    "Once": "a schedule, by its name in the OpenAPI document",
    "Word": "a word of a command line",
    "aborted": "the flag of an AbortController, as browsers name it",
    "committed": "the newest commit of a store",
    "compare": "a verb",
    "post": "a verb",
    "unsaved": "the keys of a state that are not saved, as the reference has them",
}
#: Names that recur in several folders, and the one thing that each of them means there.
RECURRING = {
    "addresses": "network addresses, public or private",
    "agent": "the running agent of one agent type",
    "agents": "agents as a resource: their routes, commands, tools, tables",
    "anthropic": "the format of Anthropic's API",
    "answer": "the final answer, for a reader",
    "approvals": "questions of runs that a person answers",
    "arguments": "arguments of a call, checked",
    "attach": "attaching to a pod",
    "auth": "authentication to a peer",
    "authoring": "agents that write agents",
    "backend": "an isolation backend",
    "board": "the board of tasks",
    "bubblewrap": "bubblewrap",
    "build": "building one thing from its parts",
    "call": "one call, from its start to its end",
    "cgroups": "control groups",
    "channel": "the channel between host and guest",
    "checkpoint": "a saved point that is continued from",
    "client": "the client of one server or process",
    "commit_queue": "writes that are committed together",
    "compaction": "making something smaller without losing what counts",
    "config": "configuration as a user writes it",
    "connection": "one connection",
    "context": "what a run knows and may reach",
    "contract": "the contract that implementations keep",
    "dial": "opening a connection outward",
    "dispatch": "starting what is due",
    "documents": "documents of a store",
    "errors": "errors of one layer",
    "files": "files of one component",
    "gates": "gates: what is closed, tried, or decides",
    "gc": "garbage collection",
    "handle": "a handle on something that runs",
    "harness": "what a conformance suite runs in",
    "images": "images",
    "journal": "the journal",
    "kernels": "the kernels of one store",
    "launcher": "a program that confines itself and starts another",
    "ledger": "an account of what was begun and done",
    "lifecycle": "from start to end",
    "limits": "numbers that bound something",
    "listener": "what accepts connections",
    "local": "what is on this machine or in this process",
    "logs": "logs",
    "loop": "the loop that does the work",
    "main": "the entry point of a program",
    "manifest": "the description of what something consists of",
    "masking": "masking of secrets",
    "memory": "what is remembered, in files or in memory",
    "messages": "the messages of one protocol",
    "model": "a chat model",
    "mounts": "mounts",
    "namespaces": "namespaces, of Linux, Kubernetes or states",
    "notifications": "telling listeners of commits",
    "openai": "the format of OpenAI's API",
    "operator": "what the operator may do",
    "options": "options of a command line",
    "outcome": "how something ended",
    "output": "what a run puts out",
    "ownership": "which kernel owns a store or a tree",
    "packets": "packets of one connection",
    "paths": "names of files, resolved safely",
    "permissions": "permission rules",
    "ports": "what is reached through an interface or a TCP port",
    "probe": "finding out what is possible here",
    "process": "one process",
    "project": "a project's folder",
    "question": "one question",
    "reader": "reads what a writer wrote",
    "records": "records in a store",
    "recovery": "continuing after a kill",
    "registry": "things by their names",
    "repair": "repair of a journal",
    "request": "one request, parsed",
    "requests": "the requests of one protocol",
    "result_cache": "results that are used again",
    "router": "finds who handles a request",
    "run": "a run",
    "runs": "runs as a resource",
    "safety": "the safety gate",
    "sandbox": "a sandbox",
    "schedule": "one schedule",
    "schedules": "schedules as a resource",
    "schema": "a schema: of JSON, or of a database",
    "serve": "serving until it is told to stop",
    "server": "the server",
    "service": "one service of the server",
    "sessions": "conversations as a resource",
    "settings": "settings of one component",
    "shared": "what several owners share",
    "sse": "server-sent events",
    "state": "the state of agents",
    "states": "states as a resource",
    "store": "a store",
    "streams": "streams of bytes",
    "suite": "a conformance suite",
    "sync": "the face without an event loop",
    "tables": "tables of a database",
    "takeover": "taking over from a kernel that died",
    "task_result": "a result that an agent declares",
    "tree": "a tree",
    "trust": "whether a folder may run code",
    "turn": "one turn",
    "type": "one agent type",
    "validation": "checking of input",
    "validators": "checks of single values",
    "values": "values as data",
    "version": "a version",
    "websocket": "WebSocket",
    "words": "words of a command line",
    "writer": "writes what a reader reads",
}


def modules() -> Iterator[Path]:
    """Yield each module of ramet, relative to its package. Examples are programs to copy, named for their readers."""
    for path in (each.relative_to(PACKAGE) for each in sorted(PACKAGE.rglob("*.py"))):
        if path.name not in ("__init__.py", "__main__.py") and "examples" not in path.parts:
            yield path


def crowded_folders(paths: list[Path]) -> dict[str, int]:
    """Return the folders with more modules than fit on a page."""
    count: dict[str, int] = defaultdict(int)
    for path in paths:
        count[str(path.parent)] += 1
    return {folder: number for folder, number in count.items() if number > MAX_MODULES}


def metaphors(paths: list[Path]) -> list[str]:
    """Return the modules whose name is on the stop list."""
    return [str(path) for path in paths if path.stem in STOP_LIST and path.stem not in RECURRING]


def participles(source: str) -> list[str]:
    """Return the public classes, functions and methods that are named by one bare participle or function word."""
    names = [
        node.name
        for parent in ast.walk(ast.parse(source))
        if isinstance(parent, ast.Module | ast.ClassDef)
        for node in parent.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    ]
    return [name for name in names if _is_participle(name) and name not in PARTICIPLES]


def _is_participle(name: str) -> bool:
    """Return whether the name is one word that is on the stop list or ends like a participle."""
    is_one_word = re.fullmatch("[A-Za-z][a-z]+", name) is not None
    return is_one_word and (name.lower() in STOP_LIST or re.search("[^e]ed$", name) is not None)


def unexplained_names(paths: list[Path]) -> dict[str, list[str]]:
    """Return the names that recur in several folders without an explanation."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folders[path.stem].append(str(path.parent))
    return {name: found for name, found in folders.items() if len(found) > 1 and name not in RECURRING}


#: A docstring begins with a verb or with the noun that the thing is; these are neither.
NO_BEGINNING = frozenset(
    (
        "all also as by everybody for from how if in it its nobody not nothing of one only so somebody that this those "
        "to what where whether which who whoever with"
    ).split()
)


def riddles(source: str) -> list[str]:
    """Return the docstrings that begin with neither a verb nor a noun, by first word and line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            words = text.split()
            if words and (words[0].lower().strip(".,;:") in NO_BEGINNING or text.lower().startswith("the same")):
                found.append(words[0] + " … line " + str(node.body[0].lineno))
    return found


def glossary() -> list[tuple[str, str]]:
    """Return the words of the glossary, with the modules that own them."""
    rows = re.findall(r"^\| (.+?) \| .+? \| `(.+?)` \|$", GLOSSARY.read_text(), re.M)
    return [(word.strip(), module) for words, module in rows for word in words.split(",")]


def test_a_folder_holds_no_more_modules_than_fit_on_a_page() -> None:
    """A reader finds the module in the tree alone."""
    assert crowded_folders(list(modules())) == {}
    assert crowded_folders([Path(f"core/m{number}.py") for number in range(17)]) == {"core": 17}


def test_no_module_is_named_by_a_metaphor_or_a_participle() -> None:
    """A module is named by the term that an engineer would search for."""
    assert metaphors(list(modules())) == []
    assert metaphors([Path("host/doorbell.py"), Path("host/journal.py")]) == ["host/doorbell.py"]


def test_no_public_name_is_a_bare_participle() -> None:
    """A class is named by a noun, a function by a verb or by the noun of what it returns."""
    found = {str(path): participles((PACKAGE / path).read_text()) for path in modules()}

    assert {path: names for path, names in found.items() if names} == {}
    assert participles("class Kept:\n    def recorded(self): ...\n    def record(self): ...") == ["Kept", "recorded"]
    defined = {node.name for path in modules() for node in _definitions((PACKAGE / path).read_text())}
    assert [name for name in PARTICIPLES if name not in defined] == []


def _definitions(source: str) -> list[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def test_a_module_name_that_recurs_means_one_thing() -> None:
    """Each recurring name is explained, and each explanation is needed."""
    paths = list(modules())
    stems = [path.stem for path in paths]

    assert unexplained_names(paths) == {}
    assert unexplained_names([Path("host/heap.py"), Path("spawn/heap.py")]) == {"heap": ["host", "spawn"]}
    assert [name for name in RECURRING if stems.count(name) < 2] == []


def test_each_word_of_the_glossary_is_unique_and_has_its_module() -> None:
    """Each concept has one word, owned by one existing module."""
    words = [word for word, _ in glossary()]

    assert len(words) > 90
    assert [word for word in words if words.count(word) > 1 and word not in ("commit", "fork", "replay")] == []
    assert [module for _, module in glossary() if not (PACKAGE / module).is_file()] == []


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    """A reader understands a docstring without the one before."""
    found = {str(path): riddles((PACKAGE / path).read_text()) for path in modules()}

    assert {path: lines for path, lines in found.items() if lines} == {}
    assert riddles('def left():\n    """Those of one reader."""\n') == ["Those … line 2"]


@pytest.mark.parametrize("package", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_no_two_public_classes_of_a_package_share_a_name(package: str) -> None:
    """A reader of a traceback knows which class a name means."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (PACKAGE / package).rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(PACKAGE)))

    shared = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in SHARED.get(package, ())} == {}
    assert [name for name in SHARED.get(package, ()) if name not in shared] == []


#: Names that two classes of a package still share. A row goes when one of the two has its own name.
SHARED: dict[str, tuple[str, ...]] = {
    "services": ("Writer",),  # each module of a format has one, by this name
    "wire": ("Answer", "Done"),  # two protocols, which no module imports together
}
