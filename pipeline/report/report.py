"""Writes a trace report: Parquet tables and an HTML page. On Spark; `page` makes the page.

The folder contains `report.html`, `report.json` (the page's data), and one folder of Parquet (zstd) per table; `rows`
holds everything that was read and is the source of the other tables. `report_folder` checks the folder.

Tables are made in several threads, because planning takes longer than the tasks of most. Each returns its part of the
page's data, which is put together in a fixed order.

Invariant: unreadable parts are listed, with file and offset, in the table `skipped` and on the page; with `strict` the
first one ends the report. Raises FileNotFoundError for paths that name no trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow.dataset import dataset
from pyarrow.parquet import write_table
from pyspark.sql import functions as f

from segstore.pipeline.replay_plan import LINK_COLUMNS, links, plan
from segstore.pipeline.report import STEPS, analysis, analysis_usage
from segstore.pipeline.report.analysis_rules import FRAME_COLUMNS, Rule, Status
from segstore.pipeline.report.folder import PAGE, report_folder
from segstore.pipeline.report.page import page
from segstore.pipeline.statements import statement
from segstore.pipeline.trace.files import find_files
from segstore.pipeline.trace.rows import BadTrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN: Final = 30
"""Maximum number of rows of a table on the page; the whole table is in Parquet."""
_EXAMPLES: Final = 3
"""Number of example violations per rule on the page."""
_AT_ONCE: Final = 4
"""Maximum number of tables that are made at the same time: tasks of one run while the driver plans another."""
_FORMAT: Final = "segstore.trace"
_READ: Final = tuple(dict.fromkeys((*FRAME_COLUMNS, *LINK_COLUMNS)))

Facts = dict[str, Any]
"""Data of the page, by name."""


def report(
    spark: SparkSession,
    paths: Sequence[str],
    folder: Path,
    *,
    strict: bool = False,
    replace: bool = False,
    parts: int = 8,
    progress: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Writes a report about traces; returns the page's data, which is also in `report.json`.

    parts: number of parts of the replay plan. progress: called with each of `STEPS` when it starts.
    Raises ReportError, FileNotFoundError, and with `strict` BadTrace.
    """
    files = find_files(paths)
    with report_folder(folder, files, replace=replace) as made:
        return report_into(spark, files, made, strict=strict, parts=parts, progress=progress)


def report_into(
    spark: SparkSession,
    files: Sequence[str],
    made: Path,
    *,
    strict: bool = False,
    parts: int = 8,
    progress: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Like `report`, for files already found and a folder from `report_folder`, which needs no session."""
    return _Report(spark, list(files), made, progress).write(strict, parts)


class _Report:
    def __init__(self, spark: SparkSession, files: list[str], out: Path, progress: Callable[[str], None]) -> None:
        self._spark = spark
        self._files = files
        self._out = out
        self._progress = progress

    def write(self, strict: bool, parts: int) -> Facts:
        self._progress(STEPS[0])
        rows = self._kept("rows", self._read(",".join(_READ)))
        blocks = self._read("file,block,record,command,frame", commands="APPEND_BLOCK")
        with analysis.Analysis(analysis.placed(rows), blocks) as found, ExitStack() as stack:
            pool = ThreadPoolExecutor(_AT_ONCE)
            stack.callback(pool.shutdown, cancel_futures=True)
            facts = {"files": len(self._files)} | self._analysed(pool, rows, found, strict, parts)
        self._progress(STEPS[7])
        (self._out / "report.json").write_text(json.dumps(facts, indent=1), "utf-8")
        (self._out / PAGE).write_text(page(facts), "utf-8")
        return facts

    def _analysed(
        self, pool: ThreadPoolExecutor, rows: DataFrame, found: analysis.Analysis, strict: bool, parts: int
    ) -> Facts:
        """Makes the tables, several at once: the driver plans one while tasks run for others."""

        def show(name: str, table: DataFrame, order: str, most: int = _SHOWN) -> Future[Facts]:
            return pool.submit(self._shown, name, table, order, most)

        read = (pool.submit(self._skipped, rows, strict), show("traffic", analysis.traffic(rows), "frames DESC"))
        planned = pool.submit(self._plan, rows, parts)
        self._progress(STEPS[1])
        exchanges = self._kept("exchanges", found.exchanges)
        facts = _joined(*read)
        pooling = pool.submit(self._pooling, rows, found.frames, exchanges)  # before the others: it takes longest
        ended = pool.submit(self._ended, exchanges)
        broken = pool.submit(self._broken, found)
        errors = show("errors", analysis.errors(rows, exchanges), "times DESC, error, request")
        of_segment, of_flow = analysis.by_parent(exchanges), exchanges.where("flow > 0")
        latencies = (
            show("latency_by_command", analysis.latencies(exchanges, "command"), "times DESC, command"),
            show("latency_by_segment", analysis.latencies(of_segment, "segment"), "times DESC, segment"),
            show("latency_by_flow", analysis.latencies(of_flow, "flow"), "times DESC, flow"),
            show("latency_histogram", analysis.histogram(exchanges, "command"), "command, least_ns", 20_000),
        )
        fill = show("block_fill", analysis_usage.block_fill(exchanges), "premature, fill_percent")
        streams = show("streams", analysis_usage.streams(rows, exchanges), "bytes DESC, stream")
        facts |= _joined(ended)
        steps = ((broken, errors), latencies, (pooling, fill), (streams,), (planned,))
        for step, made in zip(STEPS[2:7], steps, strict=True):
            self._progress(step)
            facts |= _joined(*made)
        return facts

    def _read(self, columns: str, **options: str) -> DataFrame:
        reader = self._spark.read.format(_FORMAT).option("columns", columns).options(**options)
        return reader.option("paths", json.dumps(self._files)).load()

    def _kept(self, name: str, table: DataFrame) -> DataFrame:
        """Writes a table to Parquet and returns it read back from there."""
        where = str(self._out / name)
        table.write.option("compression", "zstd").parquet(where)
        return self._spark.read.schema(table.schema).parquet(where)

    def _shown(self, name: str, table: DataFrame, order: str, most: int = _SHOWN) -> Facts:
        """Writes a table to one sorted file, of which the first rows go to the page's data."""
        self._kept(name, table.coalesce(1).sortWithinPartitions(*_order(order)))
        kept = dataset(self._out / name)
        return _listed(name, kept.schema.names, kept.head(most).to_pylist(), kept.count_rows())

    def _skipped(self, rows: DataFrame, strict: bool) -> Facts:
        lost = rows.where("kind = 'skipped' OR (kind = 'frame' AND error IS NOT NULL)")
        lost = lost.selectExpr("file", "block AS offset", "record", "kind", "size AS bytes", "error")
        facts = self._shown("skipped", lost.repartition(1), "kind DESC, file, offset, record")
        first = facts["skipped"]["rows"][:1]
        if first and strict:
            where = f"record {first[0]['record']}: " if first[0]["record"] is not None else ""
            raise BadTrace(first[0]["file"], first[0]["offset"], f"{where}{first[0]['error']}")
        counted = {row["kind"]: row for row in lost.groupBy("kind").agg({"*": "count", "bytes": "sum"}).collect()}
        stretches, frames = counted.get("skipped"), counted.get("frame")
        return facts | {
            "skipped_stretches": stretches["count(1)"] if stretches else 0,
            "skipped_bytes": stretches["sum(bytes)"] if stretches else 0,
            "undecoded_frames": frames["count(1)"] if frames else 0,
        }

    def _ended(self, exchanges: DataFrame) -> Facts:
        events = f"CASE WHEN status = '{Status.LOST}' THEN CAST(last_event AS DECIMAL(38, 0)) - first_event + 1 END"
        counts = exchanges.selectExpr("status", "NOT paired AS unpaired", f"{events} AS events").groupBy("status")
        by = {
            row.status: row
            for row in counts.agg(
                f.count("*").alias("times"), f.count_if("unpaired").alias("unpaired"), f.sum("events").alias("events")
            ).collect()
        }
        bad = exchanges.where(f"status NOT IN ('{Status.ANSWERED}', '{Status.REFUSED}')")
        first = bad.orderBy(*_order("ts_ns, file, block, record")).limit(_SHOWN).collect()
        every = sum(row.times for row in by.values() if row.status not in (Status.ANSWERED, Status.REFUSED))
        return {
            "status": {str(each): by[each].times if each in by else 0 for each in Status},
            "unpaired": sum(row.unpaired for row in by.values()),
            **_listed("unanswered", bad.columns, [row.asDict() for row in first], every),
            "lost_events": int(sum(row.events or 0 for row in by.values())),
        }

    def _broken(self, found: analysis.Analysis) -> Facts:
        violations = self._kept("violations", found.violations)
        some = statement(
            violations.sparkSession,
            f"""
            SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY rule ORDER BY ts_ns, file, block, record) AS place,
                count(*) OVER (PARTITION BY rule) AS broken FROM {{violations}})
            WHERE place <= {_EXAMPLES}
            """,
            violations=violations,
        )
        first = [row.asDict() for row in some.orderBy(*_order("rule, ts_ns, file, block, record")).collect()]
        by = {row["rule"]: row["broken"] for row in first}
        examples = [{name: row[name] for name in violations.columns} for row in first]
        return {
            "rules": [{"rule": rule.name, "says": str(rule), "broken": by.get(rule.name, 0)} for rule in Rule],
            **_listed("violations", violations.columns, examples, sum(by.values())),
        }

    def _pooling(self, rows: DataFrame, frames: DataFrame, exchanges: DataFrame) -> Facts:
        cut = analysis_usage.ticks(rows)  # skipped parts have no time; reading Parquet is cheaper than unpacking frames
        facts: Facts = {"ticks": None if cut is None else cut._asdict()}
        flying = self._kept("in_flight", analysis_usage.in_flight(exchanges))
        used = analysis_usage.used(frames, cut or analysis_usage.Ticks(0, 1, 0, 0)).persist()
        try:
            order = "most_in_flight_bytes DESC, frames DESC, file, connection, life"
            facts |= self._shown("connections", analysis_usage.connections(used, flying), order)
            if cut is None:
                return facts
            facts |= self._shown("over_time", analysis_usage.over_time(used), "tick", most=1000)
        finally:
            used.unpersist()
        at_once = flying.selectExpr(f"{cut.of('ts_ns')} AS tick", "bytes").groupBy("tick")
        most = at_once.agg(f.max("bytes").alias("most_bytes")).orderBy(*_order("tick")).collect()
        in_flight = _listed("in_flight_over_time", ["tick", "most_bytes"], [row.asDict() for row in most], len(most))
        return facts | in_flight

    def _plan(self, rows: DataFrame, parts: int) -> Facts:
        found = plan(links(rows), parts)
        assigned = [(file, connection, number) for (file, connection), number in found.part_of().items()]
        schema = pa.schema({"file": pa.string(), "connection": pa.int64(), "part": pa.int32()})
        table = pa.table(list(zip(*assigned, strict=True)) or ((),) * 3, schema=schema)
        (self._out / "plan").mkdir()
        write_table(table, self._out / "plan" / "plan.zstd.parquet", compression="zstd")
        return {"plan": {
            "components": found.components,
            "parts": [
                {"part": part.number, "connections": len(part.connections), "components": part.components,
                 "records": part.records}
                for part in found.parts
            ],
            "hubs": [
                {"file": file, "connection": connection, "shared": shared}
                for (file, connection), shared in found.hubs
            ],
        }}  # fmt: skip


def _listed(name: str, columns: list[str], first: list[dict[str, Any]], every: int) -> Facts:
    return {name: {"columns": columns, "rows": first, "all": every}}


def _joined(*made: Future[Facts]) -> Facts:
    return {name: fact for each in made for name, fact in each.result().items()}


def _order(text: str) -> list[Any]:
    out = []
    for each in text.split(", "):
        name, _, way = each.partition(" ")
        out.append(f.col(name).desc_nulls_last() if way == "DESC" else f.col(name).asc_nulls_last())
    return out
