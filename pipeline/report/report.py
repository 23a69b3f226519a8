"""Writes a trace report: Parquet tables and an HTML page. An engine reads the traces; `page` makes the page.

The folder contains `report.html`, `report.json` (the page's data), and one folder of Parquet (zstd) per table; `rows`
holds everything that was read. The analysis and the check of the rules read the traces again, so do not report on files
that are being written. `report_folder` checks the folder.

For traces up to `LOCAL_TABLES_BYTES`, which make far smaller tables, Spark only reads, judges and follows the
connections, and DuckDB makes the tables: Spark takes longer to plan a small table than DuckDB to make it.

Invariant: unreadable parts are listed, with file and offset, in the table `skipped` and on the page; with `strict` the
first one ends the report.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow.dataset import dataset
from pyarrow.parquet import write_table

from segstore.pipeline.check import verdicts
from segstore.pipeline.engine import Engine, Table
from segstore.pipeline.local_engine import LocalEngine
from segstore.pipeline.replay_plan import LINK_COLUMNS, links, plan
from segstore.pipeline.report import STEPS, analysis, analysis_usage
from segstore.pipeline.report.analysis_rules import Status
from segstore.pipeline.report.exchange import FRAME_COLUMNS
from segstore.pipeline.report.folder import PAGE
from segstore.pipeline.report.page import page
from segstore.pipeline.trace.columns import CALL_COLUMNS
from segstore.pipeline.trace.files import sizes_of
from segstore.pipeline.trace.rows import BadTrace
from segstore.wire.history import RULES

LOCAL_TABLES_BYTES: Final = 2 << 30
"""Bytes of traces up to which tables are made on this machine, though Spark reads the traces."""
_SHOWN: Final = 30
"""Maximum number of rows of a table on the page; the whole table is in Parquet."""
_EXAMPLES: Final = 3
"""Number of verdicts per broken rule on the page."""
_SETTLED: Final = (Status.ANSWERED.value, Status.REFUSED.value, Status.GIVEN_UP.value)
_READ: Final = tuple(dict.fromkeys((*FRAME_COLUMNS, *LINK_COLUMNS, *(column.name for column in CALL_COLUMNS))))

Facts = dict[str, Any]
"""Data of the page, by name."""


def write_report(
    engine: Engine,
    files: Sequence[str],
    out: Path,
    *,
    strict: bool = False,
    parts: int = 8,
    progress: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Writes a report about traces; returns the page's data, which is also in `report.json`.

    files, out: from `find_traces` and `report_folder`, which need no engine. parts: number of parts of the replay plan.
    progress: called with the name of each step (`STEPS`) when it starts. With `strict`, raises BadTrace.
    """
    size = sum(sizes_of(files).values())
    with ExitStack() as stack:
        tables = engine
        if size <= LOCAL_TABLES_BYTES and not isinstance(engine, LocalEngine):
            tables = stack.enter_context(LocalEngine(Path(tempfile.mkdtemp(dir=out)), size))
        return _Report(engine, tables, list(files), out).write(strict, parts, progress)


class _Report:
    def __init__(self, engine: Engine, tables: Engine, files: list[str], out: Path) -> None:
        self._engine = engine
        self._tables = tables
        self._files = files
        self._out = out

    def write(self, strict: bool, parts: int, progress: Callable[[str], None]) -> Facts:
        """Writes the report. progress: see `write_report`."""
        steps = iter(STEPS)
        progress(next(steps))
        both = dict.fromkeys((self._engine.about, self._tables.about))
        facts = {"engine": " and ".join(both), "files": len(self._files)}
        read = self._tables.taken(self._engine.read(self._files, _READ))
        rows = self._tables.kept(read, self._out / "rows")
        facts |= self._skipped(rows, strict)
        facts |= self._shown("traffic", analysis.traffic(rows), "frames DESC, direction, command")
        facts |= self._called(rows)
        progress(next(steps))
        with analysis.analyse_traces(self._engine, self._files, tables=self._tables) as analysed:
            exchanges = self._tables.kept(analysed.exchanges, self._out / "exchanges")
            facts |= self._ended(exchanges)
            progress(next(steps))
            facts |= self._judged()
            facts |= self._shown("errors", analysis.errors(rows, exchanges), "times DESC, error, request")
            progress(next(steps))
            facts |= self._latencies(exchanges)
            progress(next(steps))
            facts |= self._pooling(rows, analysed, exchanges)
            facts |= self._shown("block_fill", analysis_usage.block_fill(exchanges), "premature, fill_percent")
            progress(next(steps))
            facts |= self._shown("streams", analysis_usage.streams(rows, exchanges), "bytes DESC, stream")
            progress(next(steps))
            facts |= self._plan(rows, parts)
        progress(next(steps))
        (self._out / "report.json").write_text(json.dumps(facts, indent=1), "utf-8")
        (self._out / PAGE).write_text(page(facts), "utf-8")
        return facts

    def _latencies(self, exchanges: Table) -> Facts:
        of_segment = analysis.by_parent(exchanges)
        of_flow = self._sql("SELECT * FROM {exchanges} WHERE flow > 0", exchanges=exchanges)
        facts: Facts = {}
        for column, of in (("command", exchanges), ("segment", of_segment), ("flow", of_flow)):
            facts |= self._shown(f"latency_by_{column}", analysis.latencies(of, column), f"times DESC, {column}")
        histogram = analysis.histogram(exchanges, "command")
        return facts | self._shown("latency_histogram", histogram, "command, least_ns", 20_000)

    def _sql(self, text: str, **tables: Table) -> Table:
        return self._tables.statement(text, **tables)

    def _rows(self, text: str, **tables: Table) -> list[dict[str, Any]]:
        table = self._sql(text, **tables)
        names = table.columns
        return [dict(zip(names, row, strict=True)) for row in self._tables.rows(table)]

    def _shown(self, name: str, table: Table, order: str, most: int = _SHOWN) -> Facts:
        """Writes a table to one sorted file, of which the first rows go to the page's data."""
        self._tables.kept(table, self._out / name, order.split(", "))
        rows = dataset(self._out / name)
        return _listed(name, rows.schema.names, rows.head(most).to_pylist(), rows.count_rows())

    def _skipped(self, rows: Table, strict: bool) -> Facts:
        lost = self._sql(
            """
            SELECT file, block AS `offset`, record, kind, size AS bytes, error FROM {rows}
            WHERE kind = 'skipped' OR (kind = 'frame' AND error IS NOT NULL)
            """,
            rows=rows,
        )
        facts = self._shown("skipped", lost, "kind DESC, file, offset, record")
        first = facts["skipped"]["rows"][:1]
        if first and strict:
            where = f"record {first[0]['record']}: " if first[0]["record"] is not None else ""
            raise BadTrace(first[0]["file"], first[0]["offset"], f"{where}{first[0]['error']}")
        counts = self._rows("SELECT kind, count(*) AS times, sum(bytes) AS bytes FROM {lost} GROUP BY kind", lost=lost)
        times = {row["kind"]: row["times"] for row in counts}
        return facts | {
            "skipped_stretches": times.get("skipped", 0),
            "skipped_bytes": sum(row["bytes"] for row in counts if row["kind"] == "skipped"),
            "undecoded_frames": times.get("frame", 0),
        }

    def _called(self, rows: Table) -> Facts:
        calls = analysis.calls(rows)
        counts = self._rows("SELECT failed, sum(times) AS times FROM {calls} GROUP BY failed", calls=calls)
        times = {row["failed"]: int(row["times"]) for row in counts}
        facts = self._shown("calls", calls, "failed DESC, times DESC, rpc, status")
        return facts | {"calls_made": sum(times.values()), "calls_failed": times.get(True, 0)}

    def _ended(self, exchanges: Table) -> Facts:
        counts = self._rows(
            f"""
            SELECT status, count(*) AS times,
              count(CASE WHEN NOT paired AND status <> '{Status.GIVEN_UP}' THEN 1 END) AS unpaired, sum(CASE
              WHEN status = '{Status.LOST}' THEN CAST(last_event AS DECIMAL(38, 0)) - first_event + 1 END) AS events
            FROM {{exchanges}} GROUP BY status
            """,
            exchanges=exchanges,
        )
        times = {row["status"]: row["times"] for row in counts}
        bad = self._sql(f"SELECT * FROM {{exchanges}} WHERE status NOT IN {_SETTLED}", exchanges=exchanges)
        first = self._rows(f"SELECT * FROM {{bad}} ORDER BY ts_ns, file, block, record LIMIT {_SHOWN}", bad=bad)
        every = sum(count for status, count in times.items() if status not in _SETTLED)
        return {
            "status": {str(end): times.get(end, 0) for end in Status},
            "unpaired": sum(row["unpaired"] for row in counts),
            **_listed("unanswered", bad.columns, first, every),
            "lost_events": int(sum(row["events"] or 0 for row in counts)),
        }

    def _judged(self) -> Facts:
        judged = verdicts(self._engine, self._files)
        table = self._tables.kept(self._tables.taken(judged), self._out / "verdicts")
        counts = self._rows(
            "SELECT rule, count(CASE WHEN unknown IS NULL THEN 1 END) AS broken, sum(unknown) AS unknown "
            "FROM {table} GROUP BY rule",
            table=table,
        )
        first = self._rows(
            f"""
            SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY rule ORDER BY ts_ns, file, block, record, text)
                AS place FROM {{table}} WHERE unknown IS NULL)
            WHERE place <= {_EXAMPLES} ORDER BY rule, ts_ns, file, block, record, text
            """,
            table=table,
        )
        by = {row["rule"]: (row["broken"], int(row["unknown"] or 0)) for row in counts}
        rules = [(rule, *by.get(rule.id, (0, 0))) for rule in RULES.values()]
        examples = [{name: row[name] for name in table.columns} for row in first]
        return {
            "rules": [
                {"rule": rule.id, "text": rule.text, "broken": broken, "unknown": unknown}
                for rule, broken, unknown in rules
            ],
            **_listed("verdicts", table.columns, examples, sum(broken for _, broken, _ in rules)),
        }

    def _pooling(self, rows: Table, analysed: analysis.Analysis, exchanges: Table) -> Facts:
        cut = analysis_usage.ticks(rows)  # skipped parts have no time; reading Parquet is cheaper than unpacking frames
        facts: Facts = {"ticks": None if cut is None else cut._asdict()}
        flying = self._tables.kept(analysis_usage.in_flight(exchanges), self._out / "in_flight")
        used = self._tables.held(analysis_usage.used(analysed.frames, cut or analysis_usage.Ticks(0, 1, 0, 0)))
        try:
            order = "most_in_flight_bytes DESC, frames DESC, file, connection, life"
            facts |= self._shown("connections", analysis_usage.connections(used, flying), order)
            if cut is None:
                return facts
            facts |= self._shown("over_time", analysis_usage.over_time(used), "tick", most=1000)
        finally:
            self._tables.release(used)
        text = f"SELECT {cut.of('ts_ns')} AS tick, max(bytes) AS most_bytes FROM {{flying}} GROUP BY tick ORDER BY tick"
        most = self._rows(text, flying=flying)
        return facts | _listed("in_flight_over_time", ["tick", "most_bytes"], most, len(most))

    def _plan(self, rows: Table, parts: int) -> Facts:
        replay_plan = plan(links(rows), parts)
        assigned = [(file, connection, number) for (file, connection), number in replay_plan.part_of().items()]
        schema = pa.schema({"file": pa.string(), "connection": pa.int64(), "part": pa.int32()})
        table = pa.table(list(zip(*assigned, strict=True)) or ((),) * 3, schema=schema)
        (self._out / "plan").mkdir()
        write_table(table, self._out / "plan" / "plan.zstd.parquet", compression="zstd")
        return {"plan": {
            "components": replay_plan.components,
            "parts": [
                {"part": part.number, "connections": len(part.connections), "components": part.components,
                 "records": part.records}
                for part in replay_plan.parts
            ],
            "hubs": [
                {"file": file, "connection": connection, "shared": shared}
                for (file, connection), shared in replay_plan.hubs
            ],
        }}  # fmt: skip


def _listed(name: str, columns: list[str], first: list[dict[str, Any]], every: int) -> Facts:
    return {name: {"columns": columns, "rows": first, "all": every}}
