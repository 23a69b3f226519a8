"""`python -m bench`: runs benchmarks, prints what they found, writes JSON and docs/project/performance.md."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import pages
from bench.harness import FULL, QUICK, Report, machine

__all__ = ["NAMES", "main"]

NAMES: Final = ("codec", "memory", "framing", "server", "recording")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmarks that are named. Exit status 1 if a goal is missed, so that a script can hold them."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; none means all")
    parser.add_argument("--quick", action="store_true", help="short measurements, for a look and for tests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all results of this run in one file besides")
    parser.add_argument("--write-docs", action="store_true", help="write docs/project/performance.md with the results")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"{unknown[0]!r} is no benchmark; there are {', '.join(NAMES)}")
    reports: dict[str, tuple[Report, float]] = {}
    status = 0
    for name in options.names or NAMES:
        start = time.perf_counter()
        report = importlib.import_module(f"bench.{name}").run(QUICK if options.quick else FULL)
        reports[name] = report, time.perf_counter() - start
        # One by one: what is found is kept though a later one fails.
        status |= pages.finish({name: reports[name]}, quick=options.quick, write_docs=options.write_docs)
    if options.json:
        found = {name: report.to_dict() for name, (report, _) in reports.items()}
        whole = {"machine": machine(), "quick": options.quick, "benchmarks": found}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(whole, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
