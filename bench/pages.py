"""Sections of docs/performance.md that are measured apart from `make bench`, because they take long or need more.

A module of this kind is run by itself, `make bench-NAME [ARGS="--quick --write-docs"]`, and its section lies between
marks of its own, which name the command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.__main__ import RESULTS, markdown
from bench.harness import FULL, QUICK, Effort, Report, machine
from bench.pictures import FOLDER, draw

__all__ = ["main", "with_section"]

PAGE: Final = Path(__file__).parent.parent / "docs" / "performance.md"


def main(name: str, run: Callable[[Effort], Report]) -> int:
    """The command line of one module. Exit status 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}")
    parser.add_argument("--quick", action="store_true", help="a small load, for a look and for tests")
    parser.add_argument("--write-docs", action="store_true", help="put the result into docs/performance.md")
    options = parser.parse_args()
    report = run(QUICK if options.quick else FULL)
    print(markdown(report))
    if options.write_docs:
        PAGE.write_text(with_section(PAGE.read_text(), name, report))
    for picture in report.pictures:
        draw(picture, FOLDER if options.write_docs else RESULTS)
    missed = [figure for figure in report.figures if not figure.met]
    for figure in missed:
        print(f"missed: {figure.name}: {figure.value:.2f}, goal {figure.goal:g}", file=sys.stderr)
    return 1 if missed else 0


def with_section(page: str, name: str, report: Report) -> str:
    """The page with the section of `name` replaced by this report, or added at the end."""
    target = f"bench-{name.replace('_', '-')}"
    begin = f"<!-- {name}: written by `make {target} ARGS=--write-docs`, do not edit -->"
    end = f"<!-- {name}: end -->"
    facts = machine()
    known = f"Measured on {facts['cpu']}, {facts['cores']} cores, {facts['python']}, {facts['system']}."
    section = "\n".join([begin, "", markdown(report), known, "", end])
    before, found, rest = page.partition(begin)
    if not found:
        return f"{page.rstrip()}\n\n{section}\n"
    _, closed, after = rest.partition(end)
    if not closed:
        raise SystemExit(f"{PAGE} lacks the line {end!r}")
    return f"{before}{section}{after}"
