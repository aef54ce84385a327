"""Choice among repeated tests, for CI: with RAMET_TEST_SANDBOXES=one each test runs in one of its sandboxes.

- An attack runs against one of four kernels: of root or another user, with one or the other backend.
- A trip runs in one of two sandboxes, and on one of its stores.
  One that runs in a sandbox or the host runs in one of them.
- An agent type of a server runs in one of two sandboxes, and in the host.
- A promise of a backend is kept for root on one backend, and for an ordinary user on the other one.
- A promise of pods is kept by a pod of one run, by one that waited for it, or by that of a team. What happens to a pod
  happens to one that dials its kernel, or to one that is attached, and during a turn of one kind.

Which one differs from test to test, and is always the same for one test.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from zlib import crc32

#: Offsets of the choice, by the value of the variable.
CHOICES: Final[Mapping[str, int]] = {"one": 0, "another": 1}
_ATTACKED: Final = re.compile(r"\b(me-bwrap|bare-local|ordinary-bwrap|me-local)\b")
_BACKEND: Final = re.compile(r"\b(bwrap|local)\b")
_SITE: Final = re.compile(r"\b(sandbox|host)\b")
_STORE: Final = re.compile(r"\b(memory|sqlite|postgres)\b")
_POD: Final = re.compile(r"\b(attached|dialling|(?:function|conversation)-(?:killed|told\b[^\]]*))")
#: A promise and whose it is, as one parameter: the promise is a part of the test.
_PROMISE: Final = re.compile(r"(bwrap|local|run|team|waited)-(\w+)")


def left_out(tests: Iterable[str], choice: str) -> frozenset[str]:
    """Return the tests that are not chosen. Of a test that has one sandbox only, nothing is left out.

    Raises ValueError for a choice that there is not.
    """
    if choice not in CHOICES:
        raise ValueError(f"RAMET_TEST_SANDBOXES={choice!r}: one of {', '.join(CHOICES)}, or all")
    repeated: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for test in tests:
        for name, place in _places(test):
            repeated[name][place].append(test)
    left: set[str] = set()
    for name, places in repeated.items():
        chosen = sorted(places)[(crc32(name.encode()) + CHOICES[choice]) % len(places)]
        left |= {test for place, tests_there in places.items() if place != chosen for test in tests_there}
    return frozenset(left)


def _places(test: str) -> Iterator[tuple[str, str]]:
    """Yield what a test is repeated in, with the name that all its repetitions have."""
    name, _, parameters = test.partition("[")
    if name.startswith(("tests/conformance/test_backends", "tests/kubernetes/test_pods.py")):
        if (promise := _PROMISE.match(parameters)) is not None:
            yield f"{name} {promise[2]}", promise[1]
    elif name.startswith("tests/security/") and (attacked := _ATTACKED.search(parameters)) is not None:
        yield name, attacked[1]
    elif name.startswith("tests/conformance/test_agent_types"):
        if (backend := _BACKEND.search(parameters)) is not None:
            yield f"{name} {parameters.replace(backend[1], '')}", backend[1]
    elif name.startswith("tests/kubernetes/"):
        if (pod := _POD.search(parameters)) is not None:
            yield f"{name} {parameters.replace(pod[1], '')}", pod[1]
    elif name.startswith(("tests/security/", "tests/trips/")):
        for kind, pattern in (("sandbox", _BACKEND), ("store", _STORE)):
            if (place := pattern.search(parameters)) is not None:
                yield f"{name} {kind}", place[1]
        if name.startswith("tests/trips/") and (site := _SITE.search(parameters)) is not None:
            yield f"{name} {parameters.replace(site[1], '', 1)}", site[1]
