"""The plots of a report as plain plotly values: trace and layout dictionaries, made from `report.json`.

Names in traces are untrusted, and plotly interprets labels as a subset of HTML; `label` makes any name plain text.
Nothing here imports plotly; the page sets the colours of paper, text and grids. Each plot's
numbers are also in a table on the page.
"""

from __future__ import annotations

import html
from typing import Any, Final, NamedTuple

_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#808080")
_LONGEST: Final = 60
_MOST_LINES: Final = 6


class Plot(NamedTuple):
    """One plot. section: its section of the page. title: also its text for screen readers."""

    section: str
    name: str
    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]


def visible(text: str) -> str:
    """Makes control characters visible."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


def label(text: object) -> str:
    """Escapes a name for plotly; shortens long names in the middle and makes control characters visible."""
    plain = visible(str(text))
    if len(plain) > _LONGEST:
        plain = f"{plain[: _LONGEST // 2]}…{plain[-_LONGEST // 2 :]}"
    return html.escape(plain, quote=False)


def plots(facts: dict[str, Any]) -> list[Plot]:
    """Returns the plots for which there are values."""
    drawn = (_traffic(facts), _percentiles(facts), _curve(facts), _pooling(facts), _in_flight(facts), _fill(facts))
    return [plot for plot in drawn if plot is not None]


def _rows(facts: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = facts.get(name, {}).get("rows", [])
    return rows


def _layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    axis = {"automargin": True}
    return {
        "xaxis": {"title": {"text": x}, **axis, **more.pop("xaxis", {})},
        "yaxis": {"title": {"text": y}, **axis, **more.pop("yaxis", {})},
        "colorway": list(_COLOURS),
        "font": {"family": "system-ui, sans-serif"},
        "margin": {"l": 60, "r": 20, "t": 20, "b": 50},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        "height": 380,
        **more,
    }


def _traffic(facts: dict[str, Any]) -> Plot | None:
    rows = sorted(_rows(facts, "traffic"), key=lambda row: -row["frames"])[:20]
    if not rows:
        return None
    names = list(dict.fromkeys(row["command"] for row in rows))[::-1]
    data = []
    for at, way in enumerate(("request", "reply")):
        frames = {row["command"]: row["frames"] for row in rows if row["direction"] == way}
        data.append({
            "type": "bar", "orientation": "h", "name": "requests" if way == "request" else "replies",
            "y": [label(name) for name in names], "x": [frames.get(name, 0) for name in names],
            "marker": {"color": _COLOURS[at]},
        })  # fmt: skip
    height = 140 + 26 * len(names)
    layout = _layout("frames", "", barmode="stack", height=height, xaxis={"rangemode": "tozero", "nticks": 6})
    return Plot("traffic", "traffic", "Frames by command", data, layout)


def _percentiles(facts: dict[str, Any]) -> Plot | None:
    rows = _rows(facts, "latency_by_command")[:12]
    if not rows:
        return None
    names = [label(row["command"]) for row in rows]
    data = [
        {"type": "bar", "orientation": "h", "name": shown, "y": names, "x": [row[column] / 1e3 for row in rows],
         "marker": {"color": _COLOURS[at]}}
        for at, (column, shown) in enumerate((("p50_ns", "p50"), ("p99_ns", "p99"), ("most_ns", "longest")))
    ]  # fmt: skip
    height = 140 + 36 * len(names)
    yaxis = {"autorange": "reversed"}
    layout = _layout("µs", "", barmode="group", height=height, xaxis={"type": "log", "nticks": 5}, yaxis=yaxis)
    return Plot("latency", "latency", "Latency by command", data, layout)


def _curve(facts: dict[str, Any]) -> Plot | None:
    by: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(facts, "latency_histogram"):
        by.setdefault(row["command"], []).append(row)
    data = []
    most = sorted(by, key=lambda name: -sum(row["times"] for row in by[name]))[:_MOST_LINES]
    for at, name in enumerate(most):
        so_far, x, y = 0, [], []
        total = sum(row["times"] for row in by[name])
        for row in sorted(by[name], key=lambda row: row["least_ns"]):
            so_far += row["times"]
            x.append((row["least_ns"] + row["width_ns"] - 1) / 1e3)
            y.append(100 * so_far / total)
        line = {"color": _COLOURS[at % len(_COLOURS)], "shape": "hv", "width": 2}
        data.append({"type": "scatter", "mode": "lines", "name": label(name), "x": x, "y": y, "line": line})
    if not data:
        return None
    layout = _layout("at most, µs", "% of requests", xaxis={"type": "log", "nticks": 5}, yaxis={"range": [0, 101]})
    return Plot("latency", "latency-curve", "Share of requests answered within a time", data, layout)


def _seconds(facts: dict[str, Any], rows: list[dict[str, Any]]) -> list[float]:
    ticks = facts["ticks"]
    at = ((ticks["first"] + row["tick"]) * ticks["width_ns"] - ticks["start_ns"] for row in rows)
    return [max(0, since_start) / 1e9 for since_start in at]


def _time(facts: dict[str, Any]) -> dict[str, Any]:
    ticks = facts["ticks"]
    return {"range": [0, max(1, ticks["stop_ns"] - ticks["start_ns"]) / 1e9], "nticks": 6}


def _pooling(facts: dict[str, Any]) -> Plot | None:
    rows = [row for row in _rows(facts, "over_time") if row["connections"] or row["frames"]]
    if not rows:
        return None
    x = _seconds(facts, rows)
    data = [
        {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": [row[name] for row in rows],
         "line": {"color": _COLOURS[at], "shape": "hv", "dash": dash, "width": 2}}
        for at, (name, dash) in enumerate(
            (("connections", "solid"), ("flows", "dash"), ("segments", "dot"), ("writers", "dashdot"))
        )
    ]  # fmt: skip
    layout = _layout("seconds since the start", "how many", xaxis=_time(facts), yaxis={"rangemode": "tozero"})
    return Plot("pooling", "pooling", "Connections against flows, segments and writers", data, layout)


def _in_flight(facts: dict[str, Any]) -> Plot | None:
    rows = _rows(facts, "in_flight_over_time")
    if not rows:
        return None
    data = [
        {"type": "bar", "name": "bytes", "x": _seconds(facts, rows), "y": [row["most_bytes"] for row in rows],
         "marker": {"color": _COLOURS[2]}, "width": max(facts["ticks"]["width_ns"] / 1e9, 1e-9), "offset": 0}
    ]  # fmt: skip
    layout = _layout("seconds since the start", "bytes", xaxis=_time(facts), yaxis={"rangemode": "tozero"}, bargap=0)
    return Plot("pooling", "in-flight", "Most bytes in flight on one connection", data, layout)


def _fill(facts: dict[str, Any]) -> Plot | None:
    rows = _rows(facts, "block_fill")
    if not rows:
        return None
    data = []
    for at, (premature, name) in enumerate(((False, "ended when full"), (True, "ended early"))):
        blocks = {row["fill_percent"]: row["blocks"] for row in rows if row["premature"] is premature}
        data.append({
            "type": "bar", "name": name, "x": [f"{start} %" for start in range(0, 101, 10)],
            "y": [blocks.get(start, 0) for start in range(0, 101, 10)], "marker": {"color": _COLOURS[at]},
        })  # fmt: skip
    return Plot(
        "blocks",
        "fill",
        "Append blocks by fill",
        data,
        _layout("filled", "blocks", barmode="stack", xaxis={"type": "category"}),
    )
