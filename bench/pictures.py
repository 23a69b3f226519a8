"""Pictures of what was measured: grouped bars and lines, drawn as PNG and SVG.

A picture is a plain value, made where the figures are; `draw` needs matplotlib (extra `dev`) and writes `NAME.png` and
`NAME.svg`. The same values give the same bytes with one version of matplotlib and its fonts: no dates, fixed ids, the
style set here and nowhere else. The colours are those of Okabe and Ito, which most people can tell apart; lines also
differ by their marks.

Refused: names that are no plain file names, series of another length than the axis, values that are not finite, and on
a logarithmic axis values that are not above zero.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

__all__ = ["FOLDER", "Bars", "Lines", "Picture", "draw"]

FOLDER: Final = Path(__file__).parent.parent / "docs" / "img"

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_MARKS: Final = ("o", "s", "^", "D", "v", "P", "X")
_INSIDE: Final = 3
"""So many names of series find place in the picture."""
_INCHES: Final = (8.0, 4.5)
_STYLE: Final[Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.dpi": 120,
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "grid.color": "#DDDDDD",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "segstore",
}


@dataclass(frozen=True)
class Picture(ABC):
    """What both kinds have.

    name: of the files. title: above the picture, and what is read out in its place. series: name → one value for each
    place on the x axis. log: the y axis is logarithmic.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Sequence[float]]
    log: bool = False

    @abstractmethod
    def plot(self, axes: Any) -> None:
        """Draws the values into matplotlib's axes."""

    def _check(self, places: int) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name of a picture: small letters, digits, - and _")
        if not self.series or not places:
            raise ValueError(f"picture {self.name} has nothing to show")
        for name, values in self.series.items():
            if len(values) != places:
                raise ValueError(f"picture {self.name}: {name} has {len(values)} values for {places} places")
            for value in values:
                if not math.isfinite(value) or (self.log and value <= 0):
                    raise ValueError(f"picture {self.name}: {name} cannot show {value}")


@dataclass(frozen=True)
class Bars(Picture):
    """Groups of bars side by side, one of each series in every group. groups: what stands under each. decimals: of the
    value that stands on each bar."""

    groups: Sequence[str] = ()
    decimals: int = 1

    def __post_init__(self) -> None:
        self._check(len(self.groups))

    def plot(self, axes: Any) -> None:
        width = 0.8 / len(self.series)
        for at, (name, values) in enumerate(self.series.items()):
            offset = (at - (len(self.series) - 1) / 2) * width
            places = [group + offset for group in range(len(values))]
            drawn = axes.bar(places, values, width * 0.94, label=name, color=_COLOURS[at % len(_COLOURS)])
            axes.bar_label(drawn, labels=[f"{value:,.{self.decimals}f}" for value in values], padding=2, fontsize=8)
        axes.set_xticks(range(len(self.groups)), self.groups)
        axes.tick_params(axis="x", length=0)
        axes.margins(y=0.12)


@dataclass(frozen=True)
class Lines(Picture):
    """A line for each series. x: rising places on the x axis. log_x: that axis is logarithmic."""

    x: Sequence[float] = ()
    log_x: bool = False

    def __post_init__(self) -> None:
        self._check(len(self.x))
        if self.log_x and min(self.x) <= 0:
            raise ValueError(f"picture {self.name}: a logarithmic axis cannot show {min(self.x)}")

    def plot(self, axes: Any) -> None:
        for at, (name, values) in enumerate(self.series.items()):
            look = {"color": _COLOURS[at % len(_COLOURS)], "marker": _MARKS[at % len(_MARKS)]}
            axes.plot(self.x, values, label=name, **look)
        if self.log_x:
            axes.set_xscale("log")
        axes.set_xticks(list(self.x), [f"{x:,g}" for x in self.x])
        axes.minorticks_off()


def draw(picture: Picture, folder: Path = FOLDER) -> tuple[Path, Path]:
    """Writes the PNG and the SVG; returns where."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{picture.name}.png", folder / f"{picture.name}.svg"
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=_INCHES)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        picture.plot(axes)
        if picture.log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(picture.title, loc="left")
        axes.set_xlabel(picture.x_label)
        axes.set_ylabel(picture.y_label)
        if len(picture.series) > _INSIDE:
            figure.legend(loc="outside lower center", ncols=_INSIDE)  # it would lie on the bars
        elif len(picture.series) > 1:
            axes.legend()
        figure.savefig(png, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None, "Title": picture.title})
    # Its writer leaves blanks at the ends of lines.
    svg.write_text("".join(f"{line.rstrip()}\n" for line in svg.read_text("utf-8").splitlines()), "utf-8")
    return png, svg
