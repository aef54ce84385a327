"""Which path leads where."""

from __future__ import annotations

import pytest

from ramet.services.http.router import RouteMatch, Routes

ROUTES = Routes({"/a": 1, "/a/{one}": 2, "/a/new": 3, "/a/{two}/b/{three}": 4})


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a", RouteMatch(1, {})),
        ("/a/x", RouteMatch(2, {"one": "x"})),
        ("/a/new", RouteMatch(3, {})),
        ("/a/x%20y%2Fz/b/%C3%A4", RouteMatch(4, {"two": "x y/z", "three": "ä"})),
        ("/a/x y/b/{one}", RouteMatch(4, {"two": "x y", "three": "{one}"})),
    ],
)
def test_a_path_leads_to_what_it_was_given(path: str, found: RouteMatch[int]) -> None:
    """A word goes before a name, and a name stands for any one part."""
    assert ROUTES.find(path) == found


@pytest.mark.parametrize("path", ["", "/", "a", "/b", "/a/", "//a", "/a/x/", "/a/x/b", "/a//b/x", "/a/x/c/y", "/{one}"])
def test_another_path_leads_nowhere(path: str) -> None:
    """Nothing is guessed: neither a part that is empty nor one that is missing."""
    assert ROUTES.find(path) is None
