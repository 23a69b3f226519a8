"""Writes docs/project/performance.md from the latest results of the benchmarks.

Each benchmark of `BENCHMARKS` leaves its result as JSON: in `bench/results` whenever it runs, and in `bench/figures`,
which is kept with the sources, when it runs with `--write-docs`. The page is made of the files in `bench/figures` and
of nothing else: the machine, a summary of all figures that have a goal, then a section for each benchmark with its
question, what it says, a picture and a table. The same files give the same page.

Refused: a result in `bench/figures` that is not of these benchmarks, or not of this form.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.harness import FULL, QUICK, Report, Table, figures_table, machine
from bench.pictures import FOLDER, draw

__all__ = ["BENCHMARKS", "FIGURES", "PAGE", "RESULTS", "Benchmark", "finish", "main", "markdown", "page", "section"]

PAGE: Final = Path(__file__).parent.parent / "docs" / "project" / "performance.md"
RESULTS: Final = Path(__file__).parent / "results"
FIGURES: Final = Path(__file__).parent / "figures"

Found = Mapping[str, Any]
"""What one benchmark found, as in its file: `Report.to_dict` with `name`, `machine`, `quick` and `seconds`."""


@dataclass(frozen=True)
class Benchmark:
    """name: of its file and of its module. command: what runs it."""

    name: str
    command: str


def _own(name: str) -> Benchmark:
    return Benchmark(name, f"make bench-{name.replace('_', '-')}")


BENCHMARKS: Final = (
    *(Benchmark(name, f'make bench ARGS="{name}"') for name in ("codec", "memory", "framing", "server", "recording")),
    *map(
        _own,
        (
            "tap", "toxics", "durable", "capacity", "ownership", "client", "official_client", "pooling",
            "setup_timeout", "lazy_producers", "large_events", "trace_view", "pipeline", "matching", "large_trace",
            "planning", "stream_lag",
        ),
    ),
)  # fmt: skip
"""In the order of the page."""

_HEAD: Final = """\
# Performance

    make bench-all ARGS=--write-docs             # every benchmark; writes this page
    make bench ARGS="codec framing --write-docs" # some of them
    make bench-pooling ARGS=--quick              # a quick look, which changes nothing here

Goals are ratios between two ways to do the same work, measured in the same run, because absolute times depend on the
machine and the day. Contenders run in turns, a ratio is taken within each round, and the figure is the median of these
ratios; means over commands are geometric. The garbage collector runs between measurements, not during them.

A run prints its tables, writes its result to `bench/results/`, and exits with status 1 if a goal is missed.
"""
_QUICK: Final = "**A quick look with a small load: the figures are rough.**"


def main(name: str, run: Callable[..., Report], **sizes: int) -> int:
    """The command line of one module. Exit status 1 if a goal is missed. sizes: defaults of more arguments of `run`."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    parser.add_argument("--quick", action="store_true", help="a small load, for a look and for tests")
    parser.add_argument("--write-docs", action="store_true", help="write docs/project/performance.md with the result")
    for size, default in sizes.items():
        parser.add_argument(f"--{size}", type=int, default=default, help="default: %(default)s")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _ended)  # what it has started is ended on the way out
    start = time.perf_counter()
    report = run(QUICK if options.quick else FULL, **{size: getattr(options, size) for size in sizes})
    seconds = time.perf_counter() - start
    return finish({name: (report, seconds)}, quick=options.quick, write_docs=options.write_docs)


def _ended(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def finish(reports: Mapping[str, tuple[Report, float]], *, quick: bool, write_docs: bool) -> int:
    """Prints reports that took so many seconds, keeps them, draws their pictures. The exit status: 1 if a goal is
    missed."""
    facts = machine()
    missed = []
    for name, (report, seconds) in reports.items():
        print(f"{markdown(report)}\n{name} took {seconds:.1f} s\n", flush=True)
        found = {"name": name, "machine": facts, "quick": quick, "seconds": round(seconds, 1), **report.to_dict()}
        for folder in (RESULTS, FIGURES) if write_docs else (RESULTS,):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
        for picture in report.pictures:
            draw(picture, FOLDER if write_docs else RESULTS)
        missed += [figure for figure in report.figures if not figure.met]
    if write_docs:
        PAGE.write_text(page(_kept()), "utf-8")
    for figure in missed:
        print(f"missed: {figure.name}: {figure.shown}, goal {figure.goal_shown}", file=sys.stderr)
    return 1 if missed else 0


def _kept() -> list[Found]:
    found = [json.loads(path.read_text("utf-8")) for path in sorted(FIGURES.glob("*.json"))]
    order = [each.name for each in BENCHMARKS]
    if unknown := [each["name"] for each in found if each["name"] not in order]:
        raise SystemExit(f"{FIGURES} has a result of {unknown[0]!r}, which is no benchmark")
    return sorted(found, key=lambda each: order.index(each["name"]))


# --- the page -----------------------------------------------------------------------------------------------------


def page(found: Sequence[Found]) -> str:
    """The whole page, with sections in this order."""
    machines = [_machine(each["machine"]) for each in found]
    lines = [_HEAD]
    one = len(set(machines)) == 1
    if one:
        lines += [f"Measured on {machines[0]}.", ""]
    lines += ["## Summary", ""]
    lines += [f"{_count(found)}", ""]
    if rough := [each["title"] for each in found if each["quick"]]:
        lines += [f"Rough, for they were quick looks: {', '.join(rough)}.", ""]
    rows = []
    for each in found:
        where = f"[{each['title']}](#{_anchor(each['title'])})"
        rows += [(where, f["name"], f["shown"], f["goal_shown"], "yes" if f["met"] else "**no**") for f in
                 each["figures"]]  # fmt: skip
    lines += [*_table((("section", "figure", "value", "goal", "met"), rows), right=(2, 3)), ""]
    for each, facts in zip(found, machines, strict=True):
        lines += [section(each, None if one else facts), ""]
    return "\n".join(lines).rstrip() + "\n"


def section(found: Found, facts: str | None = None) -> str:
    """One benchmark's part of the page: question, what it says, picture, table; the rest folded."""
    command = next(each.command for each in BENCHMARKS if each.name == found["name"])
    tables = [(table["heading"], table["rows"]) for table in found["tables"]]
    if not tables and found["figures"]:
        tables.append(figures_table(found["figures"]))
    pictures = [
        f"[![{each['title']}](../img/{each['name']}.svg)](../img/{each['name']}.png)" for each in found["pictures"]
    ]
    lines = [f"## {found['title']}", ""]
    if found["question"]:
        lines += [f"*{found['question']}*", ""]
    if found["says"]:
        lines += [found["says"], ""]
    if found["quick"]:
        lines += [_QUICK, ""]
    for picture in pictures[:1]:
        lines += [picture, ""]
    for table in tables[:1]:
        lines += [*_table(table), ""]
    if tables[1:] or pictures[1:]:
        lines += ['<details markdown="1"><summary>More tables and pictures</summary>', ""]
        for table in tables[1:]:
            lines += [*_table(table), ""]
        for picture in pictures[1:]:
            lines += [picture, ""]
        lines += ["</details>", ""]
    lines += [f"- {note}" for note in found["notes"]]
    lines.append(f"- `{command}`, {_took(found['seconds'])}{f', on {facts}' if facts else ''}")
    return "\n".join([*lines, ""])


def markdown(report: Report) -> str:
    """A report for the terminal, with everything that it has."""
    lines = [f"## {report.title}", ""]
    for said in (report.question, report.says):
        lines += [said, ""] if said else []
    tables: list[Table] = list(report.tables)
    if report.figures:
        tables.insert(0, figures_table(report.to_dict()["figures"]))
    for table in tables:
        lines += [*_table(table), ""]
    return "\n".join([*lines, *(f"- {note}" for note in report.notes)]).rstrip() + "\n"


def _table(table: Table, right: Iterable[int] | None = None) -> list[str]:
    """right: the columns that are numbers; all but the first if it is not said."""
    heading, rows = table
    numbers = set(range(1, len(heading)) if right is None else right)
    rule = "".join("|---:" if at in numbers else "|---" for at in range(len(heading)))
    return [f"| {' | '.join(heading)} |", f"{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def _count(found: Sequence[Found]) -> str:
    goals = [figure for each in found for figure in each["figures"]]
    missed = [figure for figure in goals if not figure["met"]]
    if not goals:
        return "No figure has been measured."
    if not missed:
        return f"All {len(goals)} figures that have a goal meet it."
    return f"Of {len(goals)} figures that have a goal, {len(goals) - len(missed)} meet it."


def _machine(facts: Mapping[str, Any]) -> str:
    memory = f", {facts['memory_gb']} GB of memory" if facts.get("memory_gb") else ""
    return f"{facts['cpu']}, {facts['cores']} cores{memory}, {facts['python']}, {facts['system']}"


def _took(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return "".join(each for each in title.lower().replace(" ", "-") if each.isalnum() or each in "-_")
