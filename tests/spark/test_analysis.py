"""What Spark finds in traces is, row by row, what going through them once in plain Python finds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from segstore.pipeline.analysis_rules import EXCHANGE_COLUMNS, FRAME_COLUMNS, VIOLATION_COLUMNS
from segstore.pipeline.reference import Reference, reference
from segstore.pipeline.trace_columns import ColumnError
from tests.pipeline.planted import planted, soup
from tests.pipeline.support import write_capture
from tests.spark import SPARK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from segstore.pipeline.analysis import Analysis

pytestmark = SPARK

RECORDED = Path(__file__).parent.parent.parent / "fixtures" / "traces"


class Case:
    """Traces with everything, analysed in both ways."""

    def __init__(self, analysis: Analysis, exchanges: DataFrame, plain: Reference) -> None:
        self.analysis = analysis
        self.exchanges = exchanges
        self.plain = plain

@pytest.fixture(scope="module")
def case(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    from segstore.pipeline.analysis import analyse

    folder = tmp_path_factory.mktemp("traces")
    write_capture(folder / "planted.wtrace", planted(1)[0], a_block=70)
    for seed in range(2):
        write_capture(folder / f"soup{seed}.wtrace", soup(seed, 2000, 15), a_block=30)
    paths = [str(folder), str(RECORDED)]
    rows = spark.read.format("segstore.trace").option("frame", "true").load(paths)
    with analyse(rows) as analysis:
        exchanges = analysis.exchanges.persist()
        yield Case(analysis, exchanges, reference(paths))
        exchanges.unpersist()


def rows(frame: DataFrame, columns: tuple[str, ...]) -> list[str]:
    assert tuple(frame.columns) == columns
    return sorted(repr(tuple(row)) for row in frame.collect())


def test_every_exchange_equals_the_reference(case: Case) -> None:
    assert rows(case.exchanges, EXCHANGE_COLUMNS) == sorted(map(repr, case.plain.exchanges))


def test_every_violation_equals_the_reference(case: Case) -> None:
    assert rows(case.analysis.violations, VIOLATION_COLUMNS) == sorted(map(repr, case.plain.violations))


def test_a_missing_column_is_named(spark: SparkSession) -> None:
    from segstore.pipeline.analysis import analyse, latencies

    lacking = spark.createDataFrame([], ", ".join(f"`{name}` string" for name in FRAME_COLUMNS if name != "writer_id"))
    with pytest.raises(ColumnError, match="'writer_id'") as caught:
        analyse(lacking)
    assert caught.value.column == "writer_id"
    with pytest.raises(ColumnError, match="'stream'"):
        latencies(lacking, "stream")


def test_percentiles_are_those_of_the_nearest_rank_and_less_than_a_bucket_above(case: Case) -> None:
    from segstore.pipeline.analysis import BUCKET_BITS, histogram, latencies

    waits: dict[str, list[int]] = {}
    for row in case.plain.exchanges:
        each = dict(zip(EXCHANGE_COLUMNS, row, strict=True))
        if each["status"] in ("answered", "refused"):
            waits.setdefault(each["command"], []).append(each["latency_ns"])
    found = {row["command"]: row for row in latencies(case.exchanges, "command", percentiles=(0.5, 0.99)).collect()}
    assert found.keys() == waits.keys()
    for command, each in waits.items():
        each.sort()
        row = found[command]
        assert (row["times"], row["least_ns"], row["most_ns"]) == (len(each), each[0], each[-1])
        assert row["mean_ns"] == sum(each) // len(each)
        for percent, name in ((50, "p50_ns"), (99, "p99_ns")):
            value = each[-(-len(each) * percent // 100) - 1]
            assert value <= row[name] <= value + (value >> BUCKET_BITS)
    assert sum(row["times"] for row in histogram(case.exchanges).collect()) == sum(map(len, waits.values()))
