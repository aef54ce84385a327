"""Plots of a sitting: valid SVG with units and direction, the same bytes for the same JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import plots
from benchmarks.comparisons import ISOLATED_CALL, LIMIT_OF_PEERS, ONE_PROCESS
from benchmarks.measurement import Measurement
from benchmarks.projects import OURS, PEERS
from benchmarks.sitting import Sitting
from benchmarks.tables import as_data
from tests.unit.benchmarks.test_tables import ABOUT

SVG = "{http://www.w3.org/2000/svg}"
MEASUREMENTS = (*ONE_PROCESS, LIMIT_OF_PEERS, ISOLATED_CALL)


def kept_sitting() -> dict[str, Any]:
    """Return the JSON of a sitting in which each peer took part, and took from twice to eight times as much as ours."""
    sitting = Sitting()
    for measurement in MEASUREMENTS:
        for number, project in enumerate((OURS, *measurement.peers), 1):
            for value in (2.0 * number, 1.0 * number, 1.0 * number):
                sitting.add(measurement, project, {figure.key: value for figure in measurement.figures})
    data: dict[str, Any] = json.loads(json.dumps(as_data(ABOUT, MEASUREMENTS, sitting)))
    return data


@pytest.mark.parametrize("measurement", MEASUREMENTS, ids=lambda each: each.name)
def test_a_plot_names_projects_units_and_direction(measurement: Measurement) -> None:
    """Each figure that a peer has is a panel: its unit, which values are good, and a bar for each project."""
    picture = ElementTree.fromstring(plots.draw_all(kept_sitting())[measurement.name])
    texts = [each.text or "" for each in picture.iter(f"{SVG}text")]
    figures = [figure for figure in measurement.figures if not figure.ours_only]

    for figure in figures:
        direction = f"{figure.goal} is right" if figure.exactly is not None else "less is better"
        assert f"{figure.label}, {figure.unit} ({direction})" in texts
    for peer in PEERS:
        assert texts.count(peer.label) == (len(figures) if peer.name in measurement.peers else 0)
        assert any(text.startswith(f"{peer.label} does not") for text in texts) == (peer.name in measurement.peers)
    assert "commit abc" in " ".join(texts)


def test_bars_have_the_proportions_of_the_medians() -> None:
    """One scale begins at 0 for all bars of a panel, and the line of a bar ends at its worst round."""
    picture = ElementTree.fromstring(plots.draw_all(kept_sitting())["turn"])
    bars = [each for each in picture.iter(f"{SVG}rect") if each.get("class") in ("ours", "peer")]
    widths = [float(each.attrib["width"]) for each in bars]
    lines = list(picture.iter(f"{SVG}line"))

    assert [each.get("class") for each in bars] == ["ours", *["peer"] * 4]
    assert [width / widths[0] for width in widths] == pytest.approx([1, 2, 3, 4, 5], rel=0.01)
    assert [float(line.attrib["x2"]) - float(bar.attrib["x"]) for line, bar in zip(lines, bars, strict=True)] == (
        pytest.approx([2 * width for width in widths], rel=0.01)
    )


def test_all_of_a_picture_is_inside_of_it() -> None:
    """No bar, line or row of text begins outside, and no bar of one panel is drawn over another one."""
    for text in plots.draw_all(kept_sitting()).values():
        picture = ElementTree.fromstring(text)
        width, height = (float(picture.attrib[name]) for name in ("width", "height"))
        bars = [each for each in picture.iter(f"{SVG}rect") if each.get("class") != "page"]
        rows = [float(each.attrib["y"]) for each in picture.iter(f"{SVG}text")]

        assert max(float(each.attrib["x"]) + float(each.attrib["width"]) for each in bars) < width
        assert max(rows) < height
        assert len({each.attrib["y"] for each in bars}) == len(bars)


def test_a_plot_follows_the_colours_of_its_reader() -> None:
    """Page and text have colours for a light and for a dark scheme."""
    for picture in plots.draw_all(kept_sitting()).values():
        light, dark = picture.split("prefers-color-scheme: dark")
        assert ".page { fill: #ffffff; }" in light
        assert ".page { fill: #0d1117; }" in dark


def test_the_same_result_gives_the_same_files(tmp_path: Path) -> None:
    """A kept sitting that is drawn again has the same bytes, whatever the order of its projects."""
    data = kept_sitting()
    (tmp_path / "result.json").write_text(json.dumps(data))
    for measurement in data["measurements"].values():
        for figure in measurement["figures"].values():
            figure["values"] = dict(reversed(figure["values"].items()))
    (tmp_path / "other.json").write_text(json.dumps(data))

    for name in ("result", "other"):
        assert plots.main([str(tmp_path / f"{name}.json"), str(tmp_path / name)]) == 0

    drawn = {each.name: each.read_bytes() for each in (tmp_path / "result").iterdir()}
    assert drawn == {each.name: each.read_bytes() for each in (tmp_path / "other").iterdir()}
    assert drawn.keys() == {f"{each.name}.svg" for each in MEASUREMENTS}


def test_a_measurement_without_peers_is_not_drawn() -> None:
    """One bar compares nothing."""
    sitting = Sitting()
    sitting.add(ONE_PROCESS[0], OURS, {"cpu_turn_ms": 1.0})

    assert plots.draw_all(as_data(ABOUT, [ONE_PROCESS[0]], sitting)) == {}


def test_text_of_a_result_cannot_break_a_plot() -> None:
    """Names of machines and titles are escaped."""
    data = kept_sitting()
    data["machine"]["cpu"] = "<A & B>"
    data["measurements"]["turn"]["title"] = "a < b & c"

    picture = ElementTree.fromstring(plots.draw_all(data)["turn"])

    texts = " ".join(each.text or "" for each in picture.iter(f"{SVG}text"))
    assert "a < b & c" in texts
    assert "<A & B>" in texts
