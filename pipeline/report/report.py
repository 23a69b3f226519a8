"""Writes a trace report: Parquet tables and an HTML page. On Spark; `page` makes the page.

The folder contains `report.html`, `report.json` (the page's data), and one folder of Parquet (zstd) per table; `rows`
holds everything that was read and is the source of the other tables. `report_folder` checks the folder.

Invariant: unreadable parts are listed, with file and offset, in the table `skipped` and on the page; with `strict` the
first one ends the report. Raises FileNotFoundError for paths that name no trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
_FORMAT: Final = "segstore.trace"
_READ: Final = tuple(dict.fromkeys((*FRAME_COLUMNS, *LINK_COLUMNS)))


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
        self._facts: dict[str, Any] = {"files": len(files)}

    def write(self, strict: bool, parts: int) -> dict[str, Any]:
        facts = self._facts
        self._progress(STEPS[0])
        rows = self._kept("rows", self._read(",".join(_READ)))
        self._skipped(rows, strict)
        self._shown("traffic", analysis.traffic(rows), "frames DESC")
        blocks = None
        if any(row["command"] == "APPEND_BLOCK" for row in facts["traffic"]["rows"]):
            blocks = self._read("file,block,record,command,frame", commands="APPEND_BLOCK")
        with analysis.Analysis(analysis.placed(rows), blocks) as found:
            self._analysed(rows, found)
        self._progress(STEPS[6])
        self._plan(rows, parts)
        self._progress(STEPS[7])
        (self._out / "report.json").write_text(json.dumps(facts, indent=1), "utf-8")
        (self._out / PAGE).write_text(page(facts), "utf-8")
        return facts

    def _analysed(self, rows: DataFrame, found: analysis.Analysis) -> None:
        self._progress(STEPS[1])
        exchanges = self._kept("exchanges", found.exchanges)
        self._ended(exchanges)
        self._progress(STEPS[2])
        self._broken(self._kept("violations", found.violations))
        self._shown("errors", analysis.errors(rows, exchanges), "times DESC, error, request")
        self._progress(STEPS[3])
        chosen = {"command": exchanges, "segment": analysis.by_parent(exchanges), "flow": exchanges.where("flow > 0")}
        for by, some in chosen.items():
            self._shown(f"latency_by_{by}", analysis.latencies(some, by), f"times DESC, {by}")
        self._shown("latency_histogram", analysis.histogram(exchanges, "command"), "command, least_ns", most=20_000)
        self._progress(STEPS[4])
        self._pooling(rows, found.frames, exchanges)
        self._progress(STEPS[5])
        self._shown("streams", analysis_usage.streams(rows, exchanges), "bytes DESC, stream")

    def _read(self, columns: str, **options: str) -> DataFrame:
        reader = self._spark.read.format(_FORMAT).option("columns", columns).options(**options)
        return reader.option("paths", json.dumps(self._files)).load()

    def _kept(self, name: str, table: DataFrame) -> DataFrame:
        """Writes a table to Parquet and returns it read back from there."""
        where = str(self._out / name)
        table.write.option("compression", "zstd").parquet(where)
        return self._spark.read.schema(table.schema).parquet(where)

    def _shown(self, name: str, table: DataFrame, order: str, most: int = _SHOWN) -> DataFrame:
        """Keeps a table and adds its first rows to the page's data."""
        kept = self._kept(name, table)
        self._take(name, kept, order, most)
        return kept

    def _take(self, name: str, table: DataFrame, order: str, most: int = _SHOWN) -> None:
        first = table.orderBy(*_order(order)).limit(most).collect()
        self._facts[name] = {
            "columns": table.columns,
            "rows": [row.asDict() for row in first],
            "all": table.count() if len(first) == most else len(first),
        }

    def _skipped(self, rows: DataFrame, strict: bool) -> None:
        lost = rows.where("kind = 'skipped' OR (kind = 'frame' AND error IS NOT NULL)")
        lost = lost.selectExpr("file", "block AS offset", "record", "kind", "size AS bytes", "error")
        kept = self._shown("skipped", lost, "kind DESC, file, offset, record")
        first = self._facts["skipped"]["rows"][:1]
        if first and strict:
            where = f"record {first[0]['record']}: " if first[0]["record"] is not None else ""
            raise BadTrace(first[0]["file"], first[0]["offset"], f"{where}{first[0]['error']}")
        counted = {row["kind"]: row for row in kept.groupBy("kind").agg({"*": "count", "bytes": "sum"}).collect()}
        stretches, frames = counted.get("skipped"), counted.get("frame")
        self._facts["skipped_stretches"] = stretches["count(1)"] if stretches else 0
        self._facts["skipped_bytes"] = stretches["sum(bytes)"] if stretches else 0
        self._facts["undecoded_frames"] = frames["count(1)"] if frames else 0

    def _ended(self, exchanges: DataFrame) -> None:
        by = exchanges.groupBy("status").count().collect()
        self._facts["status"] = {str(each): 0 for each in Status} | {row["status"]: row["count"] for row in by}
        self._facts["unpaired"] = exchanges.where("NOT paired").count()
        bad = exchanges.where(f"status NOT IN ('{Status.ANSWERED}', '{Status.REFUSED}')")
        self._take("unanswered", bad, "ts_ns, file, block, record")
        lost = exchanges.where(f"status = '{Status.LOST}'")
        (found,) = lost.selectExpr("sum(CAST(last_event AS DECIMAL(38, 0)) - first_event + 1) AS events").collect()
        self._facts["lost_events"] = int(found.events or 0)

    def _broken(self, violations: DataFrame) -> None:
        by = {row["rule"]: row["count"] for row in violations.groupBy("rule").count().collect()}
        self._facts["rules"] = [{"rule": rule.name, "says": str(rule), "broken": by.get(rule.name, 0)} for rule in Rule]
        some = statement(
            violations.sparkSession,
            f"""
            SELECT * EXCEPT (place) FROM (SELECT *, row_number() OVER (
                PARTITION BY rule ORDER BY ts_ns, file, block, record) AS place FROM {{violations}})
            WHERE place <= {_EXAMPLES}
            """,
            violations=violations,
        )
        self._take("violations", some, "rule, ts_ns, file, block, record", _EXAMPLES * len(Rule) + 1)
        self._facts["violations"]["all"] = sum(by.values())

    def _pooling(self, rows: DataFrame, frames: DataFrame, exchanges: DataFrame) -> None:
        facts = self._facts
        cut = analysis_usage.ticks(rows)  # skipped parts have no time; reading Parquet is cheaper than unpacking frames
        facts["ticks"] = None if cut is None else cut._asdict()
        flying = self._kept("in_flight", analysis_usage.in_flight(exchanges))
        self._shown(
            "connections",
            analysis_usage.connections(frames, flying),
            "most_in_flight_bytes DESC, frames DESC, file, connection, life",
        )
        if cut is not None:
            self._shown("over_time", analysis_usage.over_time(frames, cut), "tick", most=1000)
            at_once = flying.selectExpr(f"{cut.of('ts_ns')} AS tick", "bytes").groupBy("tick").max("bytes")
            self._take("in_flight_over_time", at_once.toDF("tick", "most_bytes"), "tick", 1000)
        self._shown("block_fill", analysis_usage.block_fill(exchanges), "premature, fill_percent")

    def _plan(self, rows: DataFrame, parts: int) -> None:
        found = plan(links(rows), parts)
        self._facts["plan"] = {
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
        }  # fmt: skip
        assigned = [(file, connection, number) for (file, connection), number in found.part_of().items()]
        self._kept("plan", self._spark.createDataFrame(assigned, "file string, connection long, part int"))


def _order(text: str) -> list[Any]:
    from pyspark.sql import functions as f

    out = []
    for each in text.split(", "):
        name, _, way = each.partition(" ")
        out.append(f.col(name).desc_nulls_last() if way == "DESC" else f.col(name).asc_nulls_last())
    return out
