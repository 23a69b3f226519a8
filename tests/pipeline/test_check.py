"""The engines judge as `segstore.check` does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from segstore.check import Report, check
from segstore.pipeline.check import verdicts
from segstore.pipeline.local_engine import LocalEngine
from segstore.pipeline.trace.facts import as_utf8
from segstore.pipeline.trace.options import OptionError
from segstore.traces import TraceFile
from tests.pipeline.support import write_capture
from tests.test_check import FIXTURES, with_loose_bytes


def compare(rows: Iterable[tuple[Any, ...]], report: Report) -> None:
    """Compares the rows of `verdicts` with a report: what is broken and where, and what is not known."""
    there = list(rows)
    broken = sorted((row[0], row[2], row[3], row[7], *row[9:11], row[8], row[11]) for row in there if row[-1] is None)
    assert broken == sorted(
        (verdict.rule, as_utf8(verdict.key.name), as_utf8(verdict.text), *verdict.places[-1])
        for verdict in report.broken
    )
    unknown: dict[tuple[str, str], int] = {}
    for row in there:
        if row[-1] is not None:
            unknown[row[0], row[3]] = unknown.get((row[0], row[3]), 0) + row[-1]
    assert unknown == report.verdicts.unknown


def checked_files(folder: Path) -> list[str]:
    """Returns traces that break rules, traces that do not, and a trace of which a part cannot be read."""
    loose = with_loose_bytes(folder / "loose.jsonl")
    lines = loose.read_text().splitlines()
    damaged = folder / "damaged.jsonl"
    damaged.write_text("\n".join([lines[0], "nonsense", *lines[1:]]))
    return [str(damaged), *whole_files(folder)]


def whole_files(folder: Path) -> list[str]:
    """Returns traces without damage: one breaks a rule, the clock of one is set back, one has twice as many connections
    as its fixture, in one the names have a lone surrogate.
    """
    loose = with_loose_bytes(folder / "loose.jsonl")
    lines = (FIXTURES / "seal.jsonl").read_text().splitlines()
    half = len(lines) // 2
    late = (re.sub(r'"at_ns": (\d+)', lambda at: f'"at_ns": {int(at[1]) + 10**12}', line) for line in lines[1:half])
    (folder / "set_back.jsonl").write_text("\n".join([lines[0], *late, *lines[half:]]))
    with TraceFile(loose) as trace:
        records = list(trace.records())
    first_free = max(record.connection for record in records) + 1
    again = [record._replace(connection=record.connection + first_free) for record in records if record.connection]
    joined = write_capture(folder / "joined.wtrace", records + again)
    named = [record._replace(data=record.data.replace(b"/stream/", b"/str\xed\xa0\x80/")) for record in records]
    surrogates = write_capture(folder / "surrogates.wtrace", named)
    return [
        str(loose),
        str(joined),
        str(surrogates),
        str(folder / "set_back.jsonl"),
        *sorted(map(str, FIXTURES.glob("*.jsonl"))),
    ]


def test_on_this_machine(tmp_path: Path) -> None:
    files = checked_files(tmp_path)
    whole, report = check(whole_files(tmp_path)), check(files)
    assert report.broken
    (tmp_path / "work").mkdir()
    with LocalEngine(tmp_path / "work", 0) as engine:
        compare(engine.rows(verdicts(engine, files)), report)
        compare(engine.rows(verdicts(engine, whole_files(tmp_path))), whole)
        with pytest.raises(OptionError, match="there is no option 'commands'; there are mode"):
            verdicts(engine, files, commands="HELLO")
