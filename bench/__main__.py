"""`python -m bench`: runs benchmarks, prints what they found, writes JSON and the table of docs/performance.md."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.harness import FULL, QUICK, Report, machine
from bench.pictures import FOLDER, draw, link

__all__ = ["main", "markdown"]

NAMES: Final = ("codec", "memory", "framing", "server", "recording")
RESULTS: Final = Path(__file__).parent / "results"
PAGE: Final = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN: Final = "<!-- bench: written by `make bench ARGS=--write-docs`, do not edit -->"
END: Final = "<!-- bench: end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmarks that are named. Exit status 1 if a goal is missed, so that a script can hold them."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; none means all")
    parser.add_argument("--quick", action="store_true", help="short measurements, for a look and for tests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the result goes; bench/results/ otherwise")
    parser.add_argument("--write-docs", action="store_true", help="put the result into docs/performance.md")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"{unknown[0]!r} is no benchmark; there are {', '.join(NAMES)}")
    facts = machine()
    reports: dict[str, Report] = {}
    for name in options.names or NAMES:
        reports[name] = importlib.import_module(f"bench.{name}").run(QUICK if options.quick else FULL)
        print(markdown(reports[name]), flush=True)
    where = options.json or RESULTS / "latest.json"
    where.parent.mkdir(parents=True, exist_ok=True)
    found = {"machine": facts, "quick": options.quick, "benchmarks": {k: r.to_dict() for k, r in reports.items()}}
    where.write_text(json.dumps(found, indent=1) + "\n")
    if options.write_docs:
        PAGE.write_text(_with_results(PAGE.read_text(), facts, list(reports.values())))
    for report in reports.values():
        for picture in report.pictures:
            draw(picture, FOLDER if options.write_docs else RESULTS)
    missed = [figure for report in reports.values() for figure in report.figures if not figure.met]
    for figure in missed:
        print(f"missed: {figure.name}: {figure.value:.2f}, goal {figure.goal:g}", file=sys.stderr)
    return 1 if missed else 0


def markdown(report: Report) -> str:
    """A report as a section of a Markdown page."""
    lines = [f"## {report.title}", ""]
    figures = [
        (f.name, f"{f.value:.2f}", f"{'≤' if f.at_most else '≥'} {f.goal:g}", "yes" if f.met else "**no**")
        for f in report.figures
    ]
    tables: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = list(report.tables)
    if figures:
        tables.insert(0, (("figure", "ratio", "goal", "met"), figures))
    for heading, rows in tables:
        lines.append(f"| {' | '.join(heading)} |")
        lines.append("|---" + "|---:" * (len(heading) - 1) + "|")
        lines += [f"| {' | '.join(row)} |" for row in rows]
        lines.append("")
    for picture in report.pictures:
        lines += [link(picture), ""]
    lines += [f"- {note}" for note in report.notes]
    return "\n".join([*lines, ""]) if report.notes else "\n".join(lines)


def _with_results(page: str, facts: dict[str, object], reports: Sequence[Report]) -> str:
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE} lacks the lines between which the table goes: {BEGIN!r} and {END!r}")
    known = f"Measured on {facts['cpu']}, {facts['cores']} cores, {facts['python']}, {facts['system']}."
    return "\n".join([f"{before}{BEGIN}", "", known, "", *map(markdown, reports), f"{END}{after}"])


if __name__ == "__main__":
    sys.exit(main())
