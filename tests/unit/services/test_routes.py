"""Routes: which path leads to which target."""

from __future__ import annotations

import pytest

from ramet.services.http.router import RouteMatch, Routes

ROUTES = Routes({"/a": 1, "/a/{one}": 2, "/a/new": 3, "/a/{two}/b/{three}": 4})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a", RouteMatch(1, {})),
        ("/a/x", RouteMatch(2, {"one": "x"})),
        ("/a/new", RouteMatch(3, {})),
        ("/a/x%20y%2Fz/b/%C3%A4", RouteMatch(4, {"two": "x y/z", "three": "ä"})),
        ("/a/x y/b/{one}", RouteMatch(4, {"two": "x y", "three": "{one}"})),
    ],
)
def test_a_path_leads_to_its_target(path: str, expected: RouteMatch[int]) -> None:
    """A literal part goes before a parameter, and a parameter matches any one part."""
    assert ROUTES.find(path) == expected


@pytest.mark.parametrize("path", ["", "/", "a", "/b", "/a/", "//a", "/a/x/", "/a/x/b", "/a//b/x", "/a/x/c/y", "/{one}"])
def test_an_unknown_path_leads_nowhere(path: str) -> None:
    """An empty or a missing part matches nothing."""
    assert ROUTES.find(path) is None
