"""The recipes of docs/how-to/write-delta-and-iceberg.md add each micro-batch once, though Spark repeats one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from segstore.pipeline.trace.rows import trace_rows
from segstore.wire import AppendBlockEnd
from tests.pipeline.support import write_capture
from tests.spark import SPARK
from tests.spark.standalone import ROOT
from tests.wire.trace.traces import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [*SPARK, pytest.mark.needs("PySpark 4.2 or newer")]

PAGE = (ROOT / "docs" / "how-to" / "write-delta-and-iceberg.md").read_text("utf-8")


def recipe(heading: str) -> str:
    (code,) = re.findall(
        r"```python\n(.*?)```", PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0], re.DOTALL
    )
    return str(code)


def of_delta(names: dict[str, Any]) -> Any:
    return names["DeltaTable"](names["TABLE"]).to_pyarrow_table()


def of_iceberg(names: dict[str, Any]) -> Any:
    return names["catalog"].load_table(names["TABLE"]).scan().to_arrow()


@pytest.mark.parametrize(
    ("heading", "table"),
    [
        pytest.param("Delta", of_delta, marks=pytest.mark.needs("deltalake")),
        pytest.param("Iceberg", of_iceberg, marks=pytest.mark.needs("pyiceberg")),
    ],
)
def test_a_recipe_adds_each_batch_once(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    heading: str,
    table: Callable[[dict[str, Any]], Any],
) -> None:
    from uuid import UUID

    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    code = compile(recipe(heading).replace('.load("traces")', f'.load("{tmp_path}/traces")').replace(
        '"checkpoints/', f'"{tmp_path}/checkpoints/'), heading, "exec")  # fmt: skip
    names: dict[str, Any] = {"spark": spark}
    for number in range(2):
        ends = [
            record(AppendBlockEnd(UUID(int=1), 9, b"", 1, at, at), at=at) for at in range(number * 9, number * 9 + 9)
        ]
        write_capture(tmp_path / "traces" / f"{number}.wtrace", ends)
        exec(code, names)
        (log,) = (tmp_path / "checkpoints").iterdir()
        for name in (f"{number}", f".{number}.crc"):  # as if the driver had died before it logged the commit
            (log / "commits" / name).unlink()
        exec(code, names)
    found = table(names)
    assert sorted(found["event_number"].to_pylist()) == list(range(18))
    expected = [row[0] for row in trace_rows(str(tmp_path / "traces"), ["time"])]
    assert sorted(found["time"].to_pylist()) == sorted(expected)
