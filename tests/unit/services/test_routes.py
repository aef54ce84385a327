"""Which path leads where."""

from __future__ import annotations

import pytest

from ramet.services.http.router import Found, Routes

ROUTES = Routes({"/a": 1, "/a/{one}": 2, "/a/new": 3, "/a/{two}/b/{three}": 4})


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a", Found(1, {})),
        ("/a/x", Found(2, {"one": "x"})),
        ("/a/new", Found(3, {})),
        ("/a/x%20y%2Fz/b/%C3%A4", Found(4, {"two": "x y/z", "three": "ä"})),
        ("/a/x y/b/{one}", Found(4, {"two": "x y", "three": "{one}"})),
    ],
)
def test_a_path_leads_to_what_it_was_given(path: str, found: Found[int]) -> None:
    """A word goes before a name, and a name stands for any one part."""
    assert ROUTES.find(path) == found


@pytest.mark.parametrize("path", ["", "/", "a", "/b", "/a/", "//a", "/a/x/", "/a/x/b", "/a//b/x", "/a/x/c/y", "/{one}"])
def test_another_path_leads_nowhere(path: str) -> None:
    """Nothing is guessed: neither a part that is empty nor one that is missing."""
    assert ROUTES.find(path) is None
