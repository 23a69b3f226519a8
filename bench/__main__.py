"""`make bench ARGS="NAME … [--quick] [--write-docs]"`: runs benchmarks and prints their figures beside the goals.

Without a name all benchmarks run, one after the other. A benchmark that fails does not keep the next from running.
Results go to `bench/results/` as JSON. With `--write-docs` they also go to `bench/figures/`, from which
docs/project/performance.md is made: the same files make the same page. Exit status: 0 if all goals are met, 1 if a goal
is missed, 2 if a benchmark failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.harness import FULL, QUICK, Figure, Report, Table, machine

__all__ = ["BENCHMARKS", "main", "page"]

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "project" / "performance.md"
RESULTS: Final = ROOT / "bench" / "results"
FIGURES: Final = ROOT / "bench" / "figures"

BENCHMARKS: Final = {
    "codec": "bench.codec:run",
    "server": "bench.server:run",
    "tap": "bench.server:tap",
    "recording": "bench.server:recording",
    "durable": "bench.durable:run",
    "client": "bench.client:run",
    "pooling": "bench.client:pooling",
    "pipeline": "bench.pipeline:run",
    "setup_timeout": "bench.designs:setup_timeout",
    "lazy_producers": "bench.designs:lazy_producers",
    "ownership": "bench.designs:ownership",
    "large_events": "bench.designs:large_events",
}
"""Name → function, in the order of the page."""

_HEAD: Final = """\
# Performance

    make bench                                 # every benchmark
    make bench ARGS="codec server --quick"     # two benchmarks, roughly
    make bench ARGS=--write-docs               # every benchmark; writes this page

Goals are ratios between two ways to do the same work, measured in the same run, because absolute times depend on the
machine and the day. Contenders run in turns, a ratio is taken within each round, and the figure is the median of these
ratios; means over commands are geometric. The garbage collector runs between measurements, not during them. Tables and
notes of each benchmark are in `bench/figures/`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="runs benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; none means all")
    parser.add_argument("--quick", action="store_true", help="short measurements: the figures are rough")
    parser.add_argument("--write-docs", action="store_true", help="write docs/project/performance.md with the results")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in BENCHMARKS]:
        parser.error(f"{unknown[0]!r} is no benchmark; there are {', '.join(BENCHMARKS)}")
    signal.signal(signal.SIGTERM, _ended)  # stops the servers that a benchmark has started
    status = 0
    for name in options.names or BENCHMARKS:
        start = time.perf_counter()
        try:
            report = _function(name)(QUICK if options.quick else FULL)
        except Exception:  # noqa: BLE001  the error is printed, and the next benchmark runs
            traceback.print_exc()
            status = 2
            continue
        facts = {"name": name, "machine": machine(), "quick": options.quick}
        result = {**facts, "seconds": round(time.perf_counter() - start, 1), **report.to_dict()}
        print(f"{_text(report)}\n{name} took {result['seconds']} s\n", flush=True)
        for folder in (RESULTS, FIGURES) if options.write_docs else (RESULTS,):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")
        for figure in report.figures:
            if not figure.met:
                print(f"missed: {' '.join(figure.row[:3])}", file=sys.stderr)
                status = max(status, 1)
        if options.write_docs:
            PAGE.write_text(page(), "utf-8")
    return status


def _ended(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _function(name: str) -> Callable[..., Report]:
    module, _, function = BENCHMARKS[name].partition(":")
    found: Callable[..., Report] = getattr(importlib.import_module(module), function)
    return found


def page() -> str:
    """Returns the page of all results in `bench/figures`."""
    results = [
        json.loads(path.read_text("utf-8")) for name in BENCHMARKS if (path := FIGURES / f"{name}.json").exists()
    ]
    lines = [_HEAD]
    for result in results:
        figures = [Figure(**figure).row for figure in result["figures"]]
        lines += [f"## {result['title']}", "", *_table((("figure", "value", "goal", "met"), figures)), ""]
        lines.append(
            f'`make bench ARGS="{result["name"]}"`, {_took(result["seconds"])}, on {_machine(result["machine"])}'
        )
        lines += ["", "The measurement was short, and the figures are rough.", ""] if result["quick"] else [""]
    return "\n".join(lines).rstrip() + "\n"


def _text(report: Report) -> str:
    """Returns a report for the terminal."""
    lines = [f"## {report.title}", ""]
    tables: Iterable[Table] = [(("figure", "value", "goal", "met"), [figure.row for figure in report.figures])]
    for table in [*tables, *report.tables]:
        lines += [*_table(table), ""]
    return "\n".join([*lines, *(f"- {note}" for note in report.notes)]).rstrip() + "\n"


def _table(table: Table) -> list[str]:
    heading, rows = table
    rule = f"|---|{'---:|' * (len(heading) - 1)}"
    return [f"| {' | '.join(heading)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def _machine(facts: Mapping[str, Any]) -> str:
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, {facts['python']}, {facts['system']}"


def _took(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    sys.exit(main())
