"""Pictures: the same values give the same files, and what cannot be shown is refused."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.pictures import Bars, Lines, Picture, draw

BARS = Bars("two-bars", "Rates", "writers", "events/s", {"here": [1.0, 20.5], "there": [3.0, 4.0]}, groups=["1", "10"])
LINES = Lines("a_line", "Sockets", "segments", "sockets", {"pooled": [1, 10, 10]}, True, x=[1, 10, 100], log_x=True)


@pytest.mark.parametrize("picture", [BARS, LINES], ids=["bars", "lines"])
def test_a_picture_is_drawn_twice_with_the_same_bytes(picture: Picture, tmp_path: Path) -> None:
    first = [path.read_bytes() for path in draw(picture, tmp_path / "a")]
    again = [path.read_bytes() for path in draw(picture, tmp_path / "b")]
    assert first == again
    png, svg = first
    assert png.startswith(b"\x89PNG")
    texts = {"".join(each.itertext()).strip() for each in ElementTree.fromstring(svg).iter() if "text" in each.tag}
    assert {picture.title, picture.x_label, picture.y_label} <= texts
    assert b"<dc:date>" not in svg


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Bars("../up", "", "", "", {"a": [1]}, groups=["x"]), "no name of a picture"),
        (lambda: Bars("a", "", "", "", {}, groups=["x"]), "nothing to show"),
        (lambda: Bars("a", "", "", "", {"a": [1, 2]}, groups=["x"]), "2 values for 1 places"),
        (lambda: Bars("a", "", "", "", {"a": [float("nan")]}, groups=["x"]), "cannot show nan"),
        (lambda: Lines("a", "", "", "", {"a": [0.0]}, log=True, x=[1]), r"cannot show 0\.0"),
        (lambda: Lines("a", "", "", "", {"a": [1.0]}, x=[0], log_x=True), "axis cannot show 0"),
    ],
)
def test_what_cannot_be_shown_is_refused(make: object, why: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=why):
        make()
