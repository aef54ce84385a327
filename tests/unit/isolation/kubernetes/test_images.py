"""What an image has of a run's mounts, and what travels all the same."""

from __future__ import annotations

from ramet.isolation.kubernetes.images import ImageWithMounts, PlainImage


def test_what_lies_in_a_mount_that_travels_goes_with_it() -> None:
    """A link could not be where a folder comes; of names that only begin alike neither is in the other."""
    image = PlainImage("ramet")
    places = {"/data/bundles/one": "/opt/one", "/data/bundles/other": "/opt/other"}
    found = ImageWithMounts(image, places)

    assert found.without_nested([*places, "/data/bundles/one/skills", "/data/bundles/on", "/srv"]) == found
    assert found.without_nested(["/data/bundles/one", "/data"]) == ImageWithMounts(image, {})
