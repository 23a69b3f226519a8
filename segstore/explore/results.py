"""The result of an exploration: as text, as lines that repeat a run, as JUnit XML, as a baseline and as a page."""

from __future__ import annotations

import html
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from segstore.explore.points import PointClass
from segstore.explore.running import Injection, by_rules
from segstore.traces import make_folder, write_trace
from segstore.view import write_page
from segstore.wire.printable import printable
from segstore.wire.trace import Metadata, Record

_MOST_NAMED: Final = 5


def name_of(injections: Sequence[Injection]) -> str:
    """Returns the name of a run, which `only` takes: "cut after at APPEND_BLOCK_END 1"."""
    return " + ".join(map(str, injections)) or "without a fault"


class Finding(NamedTuple):
    """What a run with failures has shown.

    Args:
        injections: Its failures; none for the run without faults.
        broken: What broke, one per line; empty if nothing did.
        records: Of the run, or of a shortened run, if it broke.
        options: The options of `explore` that repeat it and are no defaults.
        is_made: Whether its failures happened.
        why: Why they did not, or why the result is unknown.
    """

    injections: tuple[Injection, ...]
    broken: tuple[str, ...] = ()
    records: Sequence[Record] = ()
    options: Mapping[str, object] = {}
    is_made: bool = True
    why: str = ""

    @property
    def kinds(self) -> set[str]:
        """The kinds of its failures, such as "lost"."""
        return {failure.partition(":")[0] for failure in self.broken}

    @property
    def name(self) -> str:
        return name_of(self.injections)

    @property
    def colour(self) -> str:
        """red, green, or unknown."""
        return "red" if self.broken else "green" if self.is_made else "unknown"

    @property
    def identities(self) -> list[str]:
        """What a baseline knows it by: the class, the failure and the kind, which stay if requests are added."""
        where = " + ".join(f"{failure.name} at {point.alike}" for point, failure in self.injections)
        return [f"{kind}: {where or 'without a fault'}" for kind in sorted(self.kinds)]

    @property
    def rules(self) -> str:
        """A fault file in one line that injects its failures, or "" if the world changes."""
        if not self.injections or any(injection.failure.change is not None for injection in self.injections):
            return ""
        return json.dumps({"rules": [injection.rule for injection in by_rules(self.injections)]})

    @property
    def pytest(self) -> str:
        """A line of a test that repeats the run; functions among its options have the options' names."""
        options = "".join(
            f", {name}={name if callable(value) else f'{value:g}' if isinstance(value, float) else value}"
            for name, value in self.options.items()
        )
        return f"segstore_explore(client, only={self.name!r}{options})"

    def is_known(self, known: Mapping[str, object]) -> bool:
        """Whether a baseline knows the finding."""
        return all(name in known for name in self.identities)

    def __str__(self) -> str:
        return "\n".join([self.name, *(f"  {printable(failure)}" for failure in self.broken)])

    def __repr__(self) -> str:
        return f"<{self.name}: {', '.join(sorted(self.kinds))}>"


@dataclass(slots=True)
class Exploration:
    """The result of an exploration.

    Args:
        cells: The runs with failures in their order; first the run without faults, if it broke.
        not_injected: (failure, why) → number of points at which it could not be injected.
        unknown: (rule, why) → number of questions that the records leave open.
        notes: What could not be compared or tried.
    """

    runs: int
    classes: list[PointClass]
    notes: list[str]
    cells: list[Finding] = field(default_factory=list)
    not_injected: Counter[tuple[str, str]] = field(default_factory=Counter)
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def findings(self) -> list[Finding]:
        """The runs that broke; several may have been shortened to the same."""
        return list({(cell.name, cell.broken): cell for cell in self.cells if cell.broken}.values())

    @property
    def unreached(self) -> list[Finding]:
        """Runs that did not reach the points of their failures."""
        return [cell for cell in self.cells if not cell.is_made and not cell.why]

    @property
    def lines(self) -> Iterator[str]:
        """What could not be tried, compared or decided."""
        yield from self.notes
        by_class: dict[tuple[str, ...], list[Finding]] = {}
        for cell in self.unreached:
            by_class.setdefault(tuple(point.alike for point, _ in cell.injections), []).append(cell)
        for first, *others in by_class.values():
            yield f"not reached: {first.name}" + (f", and {len(others)} more of this class" if others else "")
        for (name, why), count in self.not_injected.items():
            yield f"not injected at {count} point{'s' if count != 1 else ''}: {name}; {why}"
        for (rule, why), count in self.unknown.items():
            yield f"unknown {count} time{'s' if count != 1 else ''}: {rule}; {why}"

    def __str__(self) -> str:
        return "\n".join(
            [self.summary, *(line for group in grouped(self.findings) for line in shown(group)), *self.lines]
        )

    @property
    def summary(self) -> str:
        """The number of runs, and of findings."""
        return f"{self.runs} runs, {len(self.findings)} broke"

    def new(self, known: Mapping[str, object]) -> list[Finding]:
        """Returns the findings that a baseline does not know."""
        return [finding for finding in self.findings if not finding.is_known(known)]


def grouped(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Returns findings in groups that break in the same way at points of the same class."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        where = tuple(injection.point.alike for injection in finding.injections)
        groups.setdefault((where, *sorted(finding.kinds)), []).append(finding)
    return list(groups.values())


def shown(group: Sequence[Finding], command: Sequence[str] = ()) -> list[str]:
    """Returns the first finding of a group with the lines that repeat it, and the names of the other findings.

    command: the words of the command line that explored, without `--only`, if it was one.
    """
    first, *others = group
    lines = str(first).splitlines()
    if others:
        more = f", and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        lines.append(f"  also: {'; '.join(finding.name for finding in others[:_MOST_NAMED])}{more}")
    if not first.injections:
        return lines
    if command:
        lines.append(f"  again: {shlex.join([*command[:2], '--only', first.name, *command[2:]])}")
    if first.rules:
        lines.append(f"  faults: {first.rules}")
    return [*lines, f"  pytest: {first.pytest}"]


def baseline(exploration: Exploration) -> str:
    """Returns the text of a baseline: a JSON object of the findings' identities, each with an example."""
    known = {name: finding.name for finding in reversed(exploration.findings) for name in finding.identities}
    return json.dumps(dict(sorted(known.items())), indent=1) + "\n"


def junit(exploration: Exploration, known: Mapping[str, object]) -> str:
    """Returns the exploration as JUnit XML: a test case a run.

    Skipped tests are findings of the baseline, and runs whose failure did not happen or whose client still waited.
    """
    cells = exploration.cells
    failed = sum(bool(cell.broken) and not cell.is_known(known) for cell in cells)
    lines = [f'<testsuite name="segstore explore" tests="{len(cells)}" failures="{failed}">']
    for cell in cells:
        inner = ""
        if cell.broken and not cell.is_known(known):
            inner = f"<failure message={quoteattr(cell.broken[0])}>{escape(str(cell))}</failure>"
        elif cell.broken:
            inner = f"<skipped message={quoteattr(f'in the baseline: {cell.broken[0]}')}/>"
        elif not cell.is_made:
            inner = f"<skipped message={quoteattr(printable(cell.why) or 'not reached')}/>"
        lines.append(f'<testcase classname="segstore.explore" name={quoteattr(cell.name)}>{inner}</testcase>')
    return "\n".join(['<?xml version="1.0" encoding="utf-8"?>', *lines, "</testsuite>", ""])


_STYLE: Final = (
    "body{font:14px system-ui;margin:2em}table{border-collapse:collapse}td,th{border:1px solid #8886;padding:2px 6px;"
    "text-align:left}th.f{writing-mode:vertical-rl;font-weight:400}.red{background:#d33;color:#fff}.green{background:"
    "#2a5;color:#fff}.unknown{background:#bbb}.red a{color:#fff}:root{color-scheme:light dark}"
)
_SIGNS: Final = {"red": "✗", "green": "✓", "unknown": "?"}
"""The worst colour first."""


def write_fixture(finding: Finding, path: Path) -> None:
    """Writes the trace of a finding's run."""
    values = {"failure": finding.name, "broken": "; ".join(finding.broken)}
    write_trace(path, finding.records, partial(Metadata, 17, "segstore explore", values))


def write_matrix(exploration: Exploration, path: Path) -> None:
    """Writes the matrix of classes and failures as HTML, and the findings' traces and pages beside it."""
    links: dict[str, str] = {}
    folder = path.with_suffix(".runs")
    for number, finding in enumerate(exploration.findings, 1):
        make_folder(folder)
        trace = folder / f"finding-{number}.jsonl"
        write_fixture(finding, trace)
        write_page(trace.with_suffix(".html"), [trace])
        links[finding.name] = f"{folder.name}/finding-{number}.html"
    path.write_text(_matrix(exploration, links), encoding="utf-8")


def _matrix(exploration: Exploration, links: Mapping[str, str]) -> str:
    """Returns the page. links: the name of a finding → the page of its trace."""
    cells: dict[tuple[str, str], list[Finding]] = {}
    for cell in exploration.cells:
        if len(cell.injections) == 1:
            cells.setdefault((cell.injections[0].point.alike, cell.injections[0].failure.name), []).append(cell)
    names = list(dict.fromkeys(failure for _, failure in cells))
    rows = []
    for alike in exploration.classes:
        tds = "".join(_td(cells.get((alike.name, name), []), links) for name in names)
        rows.append(f"<tr><th>{html.escape(str(alike))}</th>{tds}</tr>")
    head = "".join(f'<th class="f">{html.escape(name)}</th>' for name in names)
    findings = "".join(
        f"<h3>{_link(group[0].name, html.escape(group[0].name), links)}</h3>"
        f"<pre>{html.escape(chr(10).join(shown(group)[1:]))}</pre>"
        for group in grouped(exploration.findings)
    )
    title = exploration.summary
    lines = "".join(f"<li>{html.escape(printable(line))}</li>" for line in exploration.lines)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><table><tr><th>Requests and calls</th>{head}</tr>{''.join(rows)}</table>"
        f"<h2>Findings</h2>{findings}<h2>Not decided</h2><ul>{lines}</ul></html>\n"
    )


def _td(runs: list[Finding], links: Mapping[str, str]) -> str:
    if not runs:
        return "<td></td>"
    worst = min(runs, key=lambda cell: [*_SIGNS].index(cell.colour))
    title = str(worst) if worst.broken else worst.why or worst.name
    sign = _link(worst.name, _SIGNS[worst.colour], links)
    return f'<td class="{worst.colour}" title={quoteattr(title)}>{sign}</td>'


def _link(name: str, text: str, links: Mapping[str, str]) -> str:
    return f"<a href={quoteattr(links[name])}>{text}</a>" if name in links else text
