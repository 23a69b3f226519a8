"""Judges traces and histories: `check(paths)`, and `segstore check`.

    report = check(["run.wtrace"])
    assert not report.broken, report.text()

Files may be traces of any form, compressed or not, or histories of JSON lines (`segstore.wire.history.lines`). The
records of all traces are judged together, in the order of their times; each history is judged by itself.

Invariants: parts that cannot be read are listed, and the rest is judged. Two processes, which judge large traces, give
the same verdicts as one process: they see the keys in the same order. `reduced` reduces a history to the fewest
exchanges that still break a rule.
"""

from __future__ import annotations

import heapq
import itertools
import json
import pickle
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple
from xml.etree import ElementTree

from segstore.wire.history import RULES, Broken, Judge, Place, Verdicts, judge, read_history
from segstore.wire.printable import printable
from segstore.wire.trace import Direction, Record

if TYPE_CHECKING:
    from segstore.pipeline.trace.files import FileRange
    from segstore.pipeline.trace.reading import Placed

_HISTORY_STARTS: Final = (b'"invoke"', b'"ok"', b'"fail"', b'"info"')
LARGE_BYTES: Final = 200_000_000
"""Traces from this size on are judged in two processes. Both follow all connections, and each every other key."""
_JUDGE_KEYS: Final = """import sys
sys.path[:] = sys.argv[1:]
from segstore.check import judge_keys
judge_keys(sys.stdin.buffer, sys.stdout.buffer)
"""
_LINE_BYTES: Final = 64 * 1024
_MOST_REDUCED: Final = 20_000
"""Histories with more records are not reduced."""


class Report(NamedTuple):
    """The result of a check. skipped: a sentence for each part of a file that could not be read."""

    verdicts: Verdicts
    skipped: list[str]
    histories: frozenset[str] = frozenset()
    """The files that are histories of JSON lines."""

    @property
    def broken(self) -> list[Broken]:
        return self.verdicts.broken

    def text(self) -> str:
        """Returns the report for people: each broken rule with its verdicts, then the open questions."""
        lines = []
        for rule, verdicts in self.verdicts.by_rule.items():
            lines.append(f"{rule}: {RULES[rule].text}")
            for verdict in verdicts:
                lines.append(f"  {printable(verdict.key.name)}: {printable(verdict.text)}")
                lines += [f"    {self.where(place)}" for place in verdict.places]
                lines.append(f"    see: {self.next_look(verdict)}")
        lines += [f"not read: {printable(part)}" for part in self.skipped]
        lines += [f"unknown: {count} × {rule}: {why}" for (rule, why), count in sorted(self.verdicts.unknown.items())]
        count = len(self.broken)
        lines.append(f"{self.verdicts.records} records, {count} {'verdict' if count == 1 else 'verdicts'}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values; bytes are text, with escapes where they are not UTF-8."""
        unknown = [{"rule": rule, "why": why, "count": n} for (rule, why), n in sorted(self.verdicts.unknown.items())]
        broken = [
            {
                "rule": verdict.rule,
                "subject": {"kind": verdict.key.kind, "name": verdict.key.name},
                "text": verdict.text,
                "expected": _as_json(verdict.expected),
                "actual": _as_json(verdict.actual),
                "places": [place._asdict() for place in verdict.places],
                "see": self.next_look(verdict),
            }
            for verdict in self.broken
        ]
        return {"records": self.verdicts.records, "broken": broken, "unknown": unknown, "not_read": self.skipped}

    def junit(self) -> bytes:
        """Returns the report as JUnit XML: a test case for each rule, and one with an error for parts not read."""
        by_rule = self.verdicts.by_rule
        tests, errors = len(RULES) + bool(self.skipped), int(bool(self.skipped))
        facts = {"tests": str(tests), "failures": str(len(by_rule)), "errors": str(errors)}
        suite = ElementTree.Element("testsuite", {"name": "segstore check", **facts})
        for rule in RULES.values():
            case = ElementTree.SubElement(suite, "testcase", {"classname": f"segstore.{rule.family}", "name": rule.id})
            for verdict in by_rule.get(rule.id, ()):
                failure = ElementTree.SubElement(case, "failure", {"message": printable(verdict.text)})
                failure.text = "\n".join(map(self.where, verdict.places))
        if self.skipped:
            case = ElementTree.SubElement(suite, "testcase", {"classname": "segstore.check", "name": "not read"})
            error = ElementTree.SubElement(case, "error", {"message": printable(self.skipped[0])})
            error.text = "\n".join(map(printable, self.skipped))
        whole: bytes = ElementTree.tostring(suite, "utf-8", xml_declaration=True)
        return whole

    def where(self, place: Place) -> str:
        """Returns the place of a record as one line."""
        if place.file in self.histories:
            return f"{printable(place.file)}: line {place.record}"
        subject = f"connection {place.connection}" if place.connection else "the controller's calls"
        number = f"record {place.record} " if place.record else ""  # a line has one record
        return f"{printable(place.file)}: {number}at byte {place.block}, {subject}, {place.time_ns} ns"

    def next_look(self, verdict: Broken) -> str:
        """Returns the command that shows what happened around a verdict."""
        place = verdict.places[-1]
        file = shlex.quote(printable(place.file))
        if place.file in self.histories:
            lines = [shown.record for shown in verdict.places]
            return f"sed -n {min(lines)},{max(lines)}p {file}"
        subject = f"connection = {place.connection}"
        if verdict.key.kind == "segment":
            subject = f"segment = {json.dumps(verdict.key.name)}"
        return f"segstore trace show {file} --filter {shlex.quote(subject)}"


def _as_json(value: Any) -> Any:
    """Returns a value of a verdict as a JSON value."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def check(paths: Sequence[str | Path]) -> Report:
    """Judges files, folders and globs.

    Raises FileNotFoundError, TraceError, HistoryError and other OSErrors, ChildProcessError if the second process ends.
    """
    names = [str(path) for path in paths]
    histories = [name for name in names if _is_history(name)]
    skipped: list[str] = []
    whole = Verdicts([], Counter(), 0)
    if traces := [name for name in names if name not in histories]:
        damaged: set[str] = set()
        whole = _judged(traces, skipped, damaged).known(damaged)
    for name in histories:
        whole = whole.joined(check_history(name, skipped))
    return Report(whole, skipped, frozenset(histories))


def _judged(traces: Sequence[str], skipped: list[str], damaged: set[str]) -> Verdicts:
    """Judges traces: large traces in two processes."""
    from segstore.pipeline.trace.files import find_traces, plan

    pieces = plan(find_traces(traces), sys.maxsize)
    records = _in_order(pieces, skipped, damaged)
    is_alone = getattr(sys, "frozen", False) or not sys.executable  # no Python to start
    if is_alone or sum(piece.size for piece in pieces) < LARGE_BYTES:
        return judge(records)
    command = [sys.executable, "-c", _JUDGE_KEYS, *sys.path]
    # A session of its own, so that an interrupt of the terminal ends it only through this process.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as other:
        assert other.stdin is not None, "it is a pipe"
        assert other.stdout is not None, "it is a pipe"
        try:
            with suppress(BrokenPipeError), other.stdin:  # if it has ended, its verdicts are missing, too
                pickle.dump(pieces, other.stdin)
            return judge(records, 0).joined(pickle.load(other.stdout))
        except (EOFError, pickle.UnpicklingError):
            status = other.wait()
            how = f"by signal {-status}, perhaps for want of memory" if status < 0 else f"with status {status}"
            raise ChildProcessError(f"the second process, which judges a part of the keys, ended {how}") from None
        finally:
            other.kill()


def judge_keys(source: IO[bytes], to: IO[bytes]) -> None:
    """Judges the keys that the first process does not judge: the work of the other process."""
    pickle.dump(judge(_in_order(pickle.load(source), [], set()), 1), to)


def check_history(path: str, skipped: list[str]) -> Verdicts:
    """Judges one history of JSON lines. skipped: as in `records_of`. Raises HistoryError and OSError."""
    whole, facts = Judge(), 0
    with Path(path).open("rb") as file:
        for fact in read_history(file, path, skipped):
            whole.fact(fact)
            facts += 1
    return whole.end()._replace(records=facts)


def _is_history(path: str) -> bool:
    """Whether a file starts with an operation of a history."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        line = file.read(_LINE_BYTES).lstrip().partition(b"\n")[0]
    return line.startswith(b"{") and any(word in line for word in _HISTORY_STARTS) and b'"process"' in line


def records_of(paths: Iterable[str], skipped: list[str], damaged: set[str]) -> Iterator[Placed]:
    """Yields the records of traces, with their places, in the order of their times; within a file in its order.

    skipped: gets a sentence for each part that cannot be read. damaged: gets the files with records behind such a part.
    Raises as `check`.
    """
    from segstore.pipeline.trace.files import find_traces, plan

    return _in_order(plan(find_traces(paths), sys.maxsize), skipped, damaged)


def _in_order(pieces: Iterable[FileRange], skipped: list[str], damaged: set[str]) -> Iterator[Placed]:
    from segstore.pipeline.trace.reading import placed_records

    def skip(part: object) -> None:
        skipped.append(str(part))

    traces = [placed_records(piece, skip, damaged) for piece in pieces]
    if len(traces) == 1:
        return traces[0]
    return heapq.merge(*traces, key=lambda placed: (placed[0].time_ns, placed[0].file))


def without_injected(broken: Iterable[Broken], record_at: Callable[[Place], Record]) -> list[Broken]:
    """Returns verdicts without rules of the protocol that a mock store's reply breaks: a fault rule made the reply."""
    return [
        verdict
        for verdict in broken
        if RULES[verdict.rule].family != "Protocol" or record_at(verdict.places[-1]).direction is Direction.REQUEST
    ]


# --- the fewest records that break a rule -----------------------------------------------------------------------------


def reduced(records: Sequence[Placed], verdict: Broken) -> list[Placed]:
    """Returns the fewest records that break the same rule for the same key with the same values, as far as leaving out
    finds them.

    Connections are left out first, then requests with their replies. Longer histories than 20,000 records are first cut
    to the connections of the verdict's records.
    """

    def breaks(some: Sequence[Placed]) -> bool:
        return any(_identity(broken) == identity for broken in judge(some).broken)

    identity = _identity(verdict)
    named = {(place.file, place.connection) for place in verdict.places}
    kept = [placed for placed in records if (placed[0].file, placed[0].connection) in named]
    if not breaks(kept):
        if len(records) > _MOST_REDUCED:
            return list(records)
        kept = list(records)
    if len(kept) > _MOST_REDUCED:
        return kept
    for units in (_by_connection, _by_exchange):
        kept = _fewest(units(kept), breaks)
    return kept


def _identity(verdict: Broken) -> tuple[Any, ...]:
    return verdict.rule, verdict.key, verdict.expected, verdict.actual


def _by_connection(records: Sequence[Placed]) -> list[list[Placed]]:
    units: dict[tuple[str, int], list[Placed]] = {}
    for placed in records:
        units.setdefault((placed[0].file, placed[0].connection), []).append(placed)
    return list(units.values())


def _by_exchange(records: Sequence[Placed]) -> list[list[Placed]]:
    """Groups a request with its reply; frames without a pair, openings and closes are alone."""
    from segstore.wire.trace import Exchange, Exchanges

    exchanges: dict[str, Exchanges] = {}
    units: dict[Exchange | None, list[Placed]] = {}
    for placed in records:
        seen = exchanges.setdefault(placed[0].file, Exchanges()).see(placed[1])
        units[seen] = next((units[other] for other in (*seen.answers, seen.block) if other in units), [])
        units[seen].append(placed)
    return list({id(unit): unit for unit in units.values()}.values())


def _fewest(units: list[list[Placed]], breaks: Callable[[Sequence[Placed]], bool]) -> list[Placed]:
    """Leaves out halves, quarters, … of the units as long as the rest still breaks the rule."""
    size = max(1, len(units) // 2)
    while True:
        at = 0
        while at < len(units):
            fewer = units[:at] + units[at + size :]
            if fewer and breaks(_joined(fewer)):
                units = fewer
            else:
                at += size
        if size == 1:
            return _joined(units)
        size //= 2


def _joined(units: Iterable[list[Placed]]) -> list[Placed]:
    return sorted(itertools.chain.from_iterable(units), key=lambda placed: placed[0].order)
