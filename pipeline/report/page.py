"""The HTML page of a report: one self-contained file, made from `report.json`. No Spark.

Plotly draws the plots; its script is embedded. Everything else works without scripts: each plot's numbers are also in a
table. Names in traces are untrusted: all text goes through `html.escape`, the plots' values are in a JSON block with
`<` escaped, and a content security policy forbids the page to fetch anything.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from segstore.pipeline.report.analysis_rules import Status
from segstore.pipeline.report.plots import Plot, plots, visible
from segstore.pipeline.trace.rows import time_of

_STYLE: Final = """
:root{color-scheme:light dark;--text:#1d2329;--soft:#555e68;--page:#f6f7f9;--box:#fff;--line:#d5dae0;--faint:#eceff2;
--link:#0057a3;--bad:#a11212;--badbox:#fff0f0}
@media(prefers-color-scheme:dark){:root{--text:#e4e7ea;--soft:#a9b2bc;--page:#14171a;--box:#1c2024;--line:#3a4149;
--faint:#2a2f35;--link:#7db8f2;--bad:#ff9d9d;--badbox:#3a1b1b}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;color:var(--text);margin:0;background:var(--page);overflow-wrap:anywhere}
header,main,footer{max-width:1180px;margin:0 auto;padding:0 clamp(10px,2vw,24px)}
header{padding-top:28px}h1{font-size:26px;margin:0 0 4px}h2{font-size:20px;margin:0 0 12px}
p{margin:0 0 10px;max-width:80ch}nav{margin:14px 0 20px}
nav ul{display:flex;flex-wrap:wrap;gap:6px 18px;list-style:none;padding:0;margin:0}a{color:var(--link)}
section{background:var(--box);border:1px solid var(--line);border-radius:8px;padding:18px clamp(12px,2vw,24px);
margin:0 0 20px}
.scroll{overflow-x:auto;margin:0 0 12px;background:linear-gradient(90deg,var(--box) 40%,transparent) 0/30px 100% local,
linear-gradient(270deg,var(--box) 40%,transparent) 100%/30px 100% local,
linear-gradient(90deg,var(--line),transparent) 0/10px 100%,
linear-gradient(270deg,var(--line),transparent) 100%/10px 100%;background-repeat:no-repeat}
table{border-collapse:collapse;font-size:13.5px;overflow-wrap:normal}
caption{text-align:left;font-weight:600;padding:0 0 6px}
th,td{padding:4px 14px 4px 0;text-align:left;border-bottom:1px solid var(--faint);vertical-align:top}
th{color:var(--soft);font-weight:600;white-space:nowrap}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td{white-space:nowrap}td.w{white-space:normal;overflow-wrap:anywhere;min-width:40ch}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;margin:0 0 14px}
.tile{border:1px solid var(--line);border-radius:6px;padding:10px 14px}.tile b{display:block;font-size:22px}
.tile.bad{background:var(--badbox);border-color:var(--bad);color:var(--bad)}.tile.bad b::before{content:"! "}
:focus-visible{outline:3px solid var(--link);outline-offset:1px}
figure{margin:0 0 16px}figcaption{font-weight:600;margin:0 0 4px}.plot{width:100%}
@media(max-width:600px){td:not(.n){white-space:normal}td.w{min-width:24ch}}
.more,footer{color:var(--soft);font-size:13px}footer{padding-bottom:30px}
"""
_DRAW: Final = """
const dark=matchMedia("(prefers-color-scheme:dark)");
function draw(){
  const style=getComputedStyle(document.documentElement),colour=name=>style.getPropertyValue(name).trim();
  for(const each of JSON.parse(document.getElementById("plots").textContent)){
    const layout=each.layout;
    layout.paper_bgcolor=layout.plot_bgcolor=colour("--box");
    layout.font.color=colour("--text");
    layout.font.size=innerWidth<600?10:13;
    for(const axis of [layout.xaxis,layout.yaxis]){
      axis.gridcolor=colour("--faint");axis.zerolinecolor=colour("--line");
    }
    Plotly.newPlot("plot-"+each.name,each.data,layout,{displayModeBar:false});
  }
}
draw();
dark.addEventListener("change",draw);
let width=innerWidth,resizing=0;
addEventListener("resize",()=>{
  if(innerWidth===width)return;
  width=innerWidth;
  clearTimeout(resizing);
  resizing=setTimeout(draw,150);
});
"""
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
_LONG: Final = 60
"""Cells longer than this many characters are wrapped."""
_SHOWN_START: Final = 180
_SHOWN_END: Final = 50
"""Characters of a cell that are shown if it has more; the tables have them all."""
_LABELS: Final = ("request_id", "block", "record", "connection", "life", "offset", "part", "flow", "expected", "actual")
Facts = dict[str, Any]


class _Label(int):
    """A number that is an identifier, shown without separators."""


def page(facts: Facts) -> str:
    """Renders the whole page."""
    from plotly.offline import get_plotlyjs

    drawn = plots(facts)
    values = json.dumps([{"name": plot.name, "data": plot.data, "layout": plot.layout} for plot in drawn])
    sections = "".join(_section(key, facts, drawn) for key in _SECTIONS)
    contents = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, (title, _) in _SECTIONS.items())
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>segstore: report on traces</title>
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style>{_STYLE}</style></head>
<body><header><h1>Report on traces</h1><p>{_span(facts)}</p>
<nav aria-label="Contents"><ul>{contents}</ul></nav></header>
<main>{sections}</main>
<footer>Made by segstore with {html.escape(facts["engine"])}. The whole tables are Parquet, in this folder.</footer>
<script type="application/json" id="plots">{_inert(values)}</script>
<script>{get_plotlyjs()}</script><script>{_DRAW}</script></body></html>
"""


def _inert(values: str) -> str:
    """Escapes JSON so that it cannot end a script element."""
    return values.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _section(key: str, facts: Facts, drawn: list[Plot]) -> str:
    title, body = _SECTIONS[key]
    figures = "".join(
        f'<figure><figcaption id="about-{plot.name}">{html.escape(plot.title)}</figcaption>'
        f'<div class="plot" id="plot-{plot.name}" role="img" aria-labelledby="about-{plot.name}" '
        f'style="min-height:{plot.layout["height"]}px"></div></figure>'
        for plot in drawn
        if plot.section == key
    )
    return (
        f'<section id="{key}" aria-labelledby="h-{key}"><h2 id="h-{key}">{title}</h2>{body(facts, figures)}</section>'
    )


def _span(facts: Facts) -> str:
    ticks = facts["ticks"]
    files = _count(facts["files"], "file")
    if ticks is None:
        return f"{files}, without a record."
    seconds = (ticks["stop_ns"] - ticks["start_ns"]) / 1e9
    return html.escape(f"{files}, from {_time(ticks['start_ns'])}, {seconds:,.3f} s.")


def _time(ts_ns: int) -> str:
    try:
        return f"{time_of(ts_ns):%Y-%m-%d %H:%M:%S.%f} UTC"
    except OverflowError:
        return f"{ts_ns} ns since 1970"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# --- tables -------------------------------------------------------------------------------------------------------


def _cell(value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, _Label):
        return f'<td class="n">{value}</td>'
    if isinstance(value, int | float):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        return f'<td class="n">{shown}</td>'
    text = str(value)
    if len(text) > _SHOWN_START + _SHOWN_END:
        text = f"{text[:_SHOWN_START]} … {text[-_SHOWN_END:]}"
    plain = visible(text)
    return f"<td{' class=w' if len(plain) > _LONG else ''}>{html.escape(plain)}</td>"


def _table(caption: str, heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    rows = list(rows)
    numbers = [any(isinstance(row[at], int | float) for row in rows) for at in range(len(heading))]
    head = "".join(
        f'<th scope="col"{" class=n" if number else ""}>{html.escape(name)}</th>'
        for name, number in zip(heading, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>'
        f"<caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _shown(facts: Facts, name: str, caption: str, columns: dict[str, str], *, where: str = "") -> str:
    """Renders columns of a table in `report.json` under the given names; times are in µs."""
    table = facts.get(name)
    if not table or not table["rows"]:
        return f"<p>{html.escape(caption)}: none.</p>"
    rows = [[_value_shown(column, row[column]) for column in columns] for row in table["rows"]]
    more = table["all"] - len(rows)
    rest = f'<p class="more">{more:,} more in <code>{html.escape(where or name)}</code>.</p>' if more > 0 else ""
    return _table(caption, list(columns.values()), rows) + rest


def _value_shown(column: str, value: Any) -> Any:
    if value is None:
        return None
    if column in _LABELS:
        return _Label(value)
    return value / 1e3 if column.endswith("_ns") else value


# --- sections -----------------------------------------------------------------------------------------------------


def _tile(number: int, what: str, *, bad: bool = False) -> str:
    return f'<div class="tile{" bad" if bad and number else ""}"><b>{number:,}</b>{html.escape(what)}</div>'


def _summary(facts: Facts, figures: str) -> str:
    status = facts["status"]
    frames = sum(row["frames"] for row in facts["traffic"]["rows"] if row["command"] != "(no frame)")
    return (
        '<div class="tiles">'
        + _tile(frames, "frames")
        + _tile(facts["connections"]["all"], "connections")
        + _tile(facts["calls_made"], "controller calls")
        + _tile(facts["calls_failed"], "failed calls", bad=True)
        + _tile(status[Status.ANSWERED], "requests answered")
        + _tile(status[Status.REFUSED], "refused")
        + _tile(status[Status.UNANSWERED], "unanswered", bad=True)
        + _tile(status[Status.LOST], "appends lost", bad=True)
        + _tile(status[Status.ORPHAN], "orphan replies", bad=True)
        + _tile(facts["verdicts"]["all"], "violations of rules", bad=True)
        + _tile(facts["skipped_stretches"] + facts["undecoded_frames"], "skipped or undecoded", bad=True)
        + "</div>"
        + figures
    )


def _skipped(facts: Facts, figures: str) -> str:
    if not facts["skipped"]["rows"]:
        return "<p>Everything was read.</p>"
    said = (
        f"{_count(facts['skipped_stretches'], 'part')} of files with {_count(facts['skipped_bytes'], 'byte')} "
        f"and {_count(facts['undecoded_frames'], 'frame')} could not be read. The page is about the rest."
    )
    columns = {"file": "file", "offset": "at byte", "record": "record", "bytes": "bytes", "error": "why"}
    return f"<p>{said}</p>{_shown(facts, 'skipped', 'Skipped', columns)}"


def _traffic(facts: Facts, figures: str) -> str:
    columns = ("direction", "command", "frames", "bytes", "failures", "malformed")
    return figures + _shown(facts, "traffic", "Frames and bytes", dict(zip(columns, columns, strict=True)))


def _latency(facts: Facts, figures: str) -> str:
    columns = {"times": "requests", "mean_ns": "mean", "least_ns": "shortest", "p50_ns": "p50", "p90_ns": "p90",
               "p99_ns": "p99", "p99_9_ns": "p99.9", "most_ns": "longest"}  # fmt: skip
    tables = (
        _shown(facts, f"latency_by_{by}", f"By {by}, in µs", {by: by, **columns}, where=f"latency_by_{by}")
        for by in ("command", "segment", "flow")
    )
    return (
        "<p>From a request to its reply, of an append to the ack that covers it. Percentiles are at most 0.8 % above "
        "the value that occurred; mean, shortest and longest are exact.</p>" + figures + "".join(tables)
    )


_ENDS: Final = {
    Status.ANSWERED: "a reply, or an ack that covers the append",
    Status.REFUSED: "a failure",
    Status.WAITING: "no reply, but the connection was open at the end of the trace",
    Status.UNANSWERED: "no reply before the connection was closed",
    Status.GIVEN_UP: "a read that waited for data when its client closed the connection",
    Status.ORPHAN: "a reply without a request",
    Status.REPEATED: "an append of events that were acknowledged before",
    Status.COVERED: "an append without an ack, of which a later set-up or ack says that it is stored",
    Status.LOST: "an append of which nothing says that it is stored",
}


def _unanswered(facts: Facts, figures: str) -> str:
    ends = [(str(status), facts["status"][status], said) for status, said in _ENDS.items()]
    columns = {"status": "end", "file": "file", "block": "block", "record": "record", "connection": "connection",
               "command": "request", "reply_command": "reply", "request_id": "request id", "segment": "segment",
               "first_event": "first event", "last_event": "last event"}  # fmt: skip
    return (
        f"<p>{_count(facts['unpaired'], 'request')} had no reply with the same request id. An ack covers all events "
        f"of its writer up to its number, so an append without an ack of its own is not lost: "
        f"{_count(facts['lost_events'], 'event')} are, in {_count(facts['status'][Status.LOST], 'append')}.</p>"
        + _table("How requests ended", ("end", "how often", "what it is"), ends)
        + _shown(facts, "unanswered", "Neither answered nor refused", columns, where="exchanges")
    )


def _rules(facts: Facts, figures: str) -> str:
    broken = [(rule["rule"], rule["broken"], rule["text"]) for rule in facts["rules"] if rule["broken"]]
    unknown = [f"{rule['unknown']:,} × {rule['rule']}" for rule in facts["rules"] if rule["unknown"]]
    columns = {name: name for name in ("rule", "kind", "name", "text", "file", "block", "record", "connection")}
    return (
        f"<p>{len(broken)} of {len(facts['rules'])} rules are broken. "
        f"The records do not decide: {html.escape(', '.join(unknown)) or 'nothing'}.</p>"
        + _table("How often each rule was broken", ("rule", "times", "in a correct history"), broken)
        + _shown(facts, "verdicts", "The first records of each broken rule", columns)
    )


def _errors(facts: Facts, figures: str) -> str:
    columns = {"error": "error", "request": "in answer to", "times": "times", "segments": "segments"}
    return _shown(facts, "errors", "Replies of stores that are failures, by kind", columns)


def _calls(facts: Facts, figures: str) -> str:
    columns = {"rpc": "method", "status": "outcome", "failed": "failed", "times": "times"}
    return _shown(facts, "calls", "Controller calls by outcome", columns)


def _pooling(facts: Facts, figures: str) -> str:
    columns = {name: name.replace("_", " ") for name in (
        "file", "connection", "life", "frames", "sent_bytes", "received_bytes", "flows", "segments", "writers",
        "most_in_flight_bytes", "closed")}  # fmt: skip
    return (
        "<p>Pooling shares connections between flows: the more flows and segments a connection carries, the fewer "
        "connections there are. Bytes in flight are those of appends that were sent and not yet acknowledged; of a "
        "lost append they stay until the end.</p>"
        + figures
        + _shown(facts, "connections", "Connections with the most bytes in flight", columns)
    )


def _blocks(facts: Facts, figures: str) -> str:
    rows = facts["block_fill"]["rows"]
    blocks = sum(row["blocks"] for row in rows)
    if not blocks:
        return "<p>No append block was opened: every append came by itself, in a block end.</p>"
    early = sum(row["blocks"] for row in rows if row["premature"])
    used, size = sum(row["used_bytes"] for row in rows), sum(row["block_bytes"] for row in rows)
    columns = {"fill_percent": "filled from %", "premature": "ended early", "blocks": "blocks",
               "block_bytes": "bytes", "used_bytes": "of these used"}  # fmt: skip
    return (
        f"<p>{early:,} of {_count(blocks, 'append block')} ended early ({100 * early / blocks:.1f} %): something else "
        f"had to be sent, and the rest was padded. {100 * used / max(1, size):.1f} % of all bytes were used.</p>"
        + figures
        + _shown(facts, "block_fill", "Append blocks by fill", columns)
    )


def _streams(facts: Facts, figures: str) -> str:
    columns = {"stream": "stream", "segments": "segments seen", "segments_written": "written to", "writers": "writers",
               "writers_idle": "never appended", "connections": "connections", "appends": "appends",
               "events": "events", "bytes": "bytes"}  # fmt: skip
    return (
        "<p>A lazy writer sets up where it has something to write, a partial one keeps to a few segments. Writers that "
        "were set up and never appended are what laziness would have saved. A writer has an id of its own in each "
        "segment.</p>" + _shown(facts, "streams", "Streams", columns)
    )


def _plan(facts: Facts, figures: str) -> str:
    plan = facts["plan"]
    parts = [(part["part"], part["connections"], part["components"], part["records"]) for part in plan["parts"]]
    hubs = [(hub["file"], hub["connection"], hub["shared"]) for hub in plan["hubs"]]
    return (
        f"<p>{_count(plan['components'], 'group')} of connections depend on no other: no segment or writer is named "
        "in two of them, so that each can be replayed by itself.</p>"
        + _table("Parts", ("part", "connections", "groups", "records"), parts)
        + _table("What ties most together", ("file", "connection", "segments and writers shared"), hubs) * bool(hubs)
    )


_SECTIONS: Final[dict[str, tuple[str, Callable[[Facts, str], str]]]] = {
    "summary": ("Summary", _summary),
    "skipped": ("What could not be read", _skipped),
    "traffic": ("Traffic", _traffic),
    "latency": ("Latency", _latency),
    "unanswered": ("Unanswered, orphans and lost acks", _unanswered),
    "rules": ("Broken rules", _rules),
    "errors": ("Errors", _errors),
    "calls": ("Controller calls", _calls),
    "pooling": ("Connections and pooling", _pooling),
    "blocks": ("Append blocks", _blocks),
    "streams": ("Writers of streams", _streams),
    "plan": ("Replay plan", _plan),
}
"""Key of a section → its title and what renders it, given the facts and the section's plots."""
