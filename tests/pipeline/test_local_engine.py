"""A report needs no Spark: the same numbers in any number of processes, and each failure is one sentence."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import get_loop

from segstore.pipeline import local_engine, session
from segstore.pipeline.local_engine import LocalEngine, LocalTable, ProcessDied
from segstore.pipeline.report import STEPS
from segstore.pipeline.trace.files import find_traces
from segstore.pipeline.trace.rows import trace_rows
from segstore.wire.extras import pip_command
from tests.pipeline.stores import http_store
from tests.pipeline.trace.test_packets import mixed, written
from tests.processes import invoke

RECORDED = Path(__file__).parent.parent.parent / "fixtures" / "traces"
TWO = 2 * local_engine._PROCESS_BYTES
"""A size of traces for two processes."""


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_engine, "_cores", lambda: 2)


@pytest.fixture(scope="module", autouse=True)
def libraries_run() -> None:
    """Starts what `multiprocessing` and fsspec start once and keep."""
    ensure_running()
    get_loop()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from bench.pipeline import write_traffic

    trace = tmp_path_factory.mktemp("busy") / "busy.wtrace"
    write_traffic(trace, 1_000_000, writers=12, connections=5)
    return trace


def engine(folder: Path, trace_bytes: int) -> LocalEngine:
    folder.mkdir()
    return LocalEngine(folder, trace_bytes)


def reported(folder: Path, traces: list[str], trace_bytes: int) -> dict[str, Any]:
    from segstore.pipeline.report.folder import report_folder
    from segstore.pipeline.report.report import write_report

    out = folder / f"report{trace_bytes}"
    with engine(folder / f"work{trace_bytes}", trace_bytes) as running, report_folder(out) as empty:
        return write_report(running, find_traces(traces), empty)


def test_two_processes_find_what_one_finds(tmp_path: Path, trace: Path) -> None:
    packets = written(tmp_path / "some.pcap", mixed(random.Random(1)))
    zipped = tmp_path / "busy.wtrace.gz"
    zipped.write_bytes(gzip.compress(trace.read_bytes()))
    traces = [str(trace), str(RECORDED), str(packets), str(zipped)]
    one, two = reported(tmp_path, traces, 0), reported(tmp_path, traces, TWO)
    assert (one.pop("engine"), two.pop("engine")) != ("", "")
    assert one == two
    assert one["connections"]["all"] > 5
    assert sorted(path.name for path in tmp_path.glob("[rw]*")) == ["report0", f"report{TWO}"]


def test_a_trace_on_a_store_is_read_by_two_processes(tmp_path: Path, trace: Path) -> None:
    columns = ("block", "record", "ts_ns", "command")
    with http_store() as store, engine(tmp_path / "work", TWO) as running:
        store.files["busy.wtrace"] = trace.read_bytes()
        found = running.rows(running.read([store.url("busy.wtrace")], columns))
        assert sorted(found, key=repr) == sorted(trace_rows(str(trace), columns), key=repr)


def test_packed_rows_are_taken_a_few_at_a_time(tmp_path: Path) -> None:
    """So memory is bounded: each may be ten thousand rows."""
    import pyarrow as pa

    seen: list[int] = []

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            seen.append(batch.num_rows)
            yield batch

    with engine(tmp_path / "work", 0) as running:
        packed = running.statement("SELECT CAST('ten thousand' AS BLOB) AS rows FROM range(1000)")
        mapped = running.mapped(packed, step, pa.schema({"rows": pa.binary()}))
        assert sum(seen) == len(list(running.rows(mapped))) == 1000
        assert max(seen) <= local_engine._PACKED_AT_ONCE


def schema(table: LocalTable) -> Any:
    from pyarrow.dataset import dataset

    assert table.folder is not None
    return dataset(table.folder).schema


def test_a_sum_has_the_type_that_spark_gives_it(tmp_path: Path, trace: Path) -> None:
    with engine(tmp_path / "work", 0) as running:
        rows = running.read([str(trace)], ["size"])
        kept = running.kept(running.statement("SELECT sum(size) AS `offset` FROM {rows}", rows=rows), tmp_path / "kept")
        assert str(schema(kept).field("offset").type) == "int64"
        too_much = "SELECT sum(9223372036854775807) AS most FROM {rows}"
        with pytest.raises(Exception, match="INT64"):
            running.kept(running.statement(too_much, rows=rows), tmp_path / "much")


def test_folders_with_signs_of_sql_and_globs_are_only_names(tmp_path: Path, trace: Path) -> None:
    with engine(tmp_path / "it's [a]*{b}?", 0) as running:
        rows = running.read([str(trace)], ["size"])
        counted = running.statement("SELECT count(*) FROM {rows}", rows=rows)
        assert list(running.rows(counted)) == [(len(list(running.rows(rows))),)]


@contextmanager
def at_work(folder: Path) -> Iterator[tuple[LocalEngine, list[BaseException]]]:
    """An engine whose two processes have begun what would take minutes, and why they end."""
    import pyarrow as pa

    ended: list[BaseException] = []
    with engine(folder, TWO) as running:
        many = LocalTable(running, "SELECT range AS number FROM range(1_000_000_000)")

        def work() -> None:
            try:
                running.mapped(many, iter, pa.schema({"number": pa.int64()}), ["number"])
            except ProcessDied as error:
                ended.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        while len(list(folder.glob("*/part-*"))) < 2:
            time.sleep(0.01)
        yield running, ended
    worker.join()


def test_a_process_that_is_killed_ends_the_work_with_a_sentence(tmp_path: Path) -> None:
    with at_work(tmp_path / "work") as (_, ended):
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
        while not ended:
            time.sleep(0.01)
    (error,) = ended
    assert isinstance(error, ProcessDied)
    assert "lack of memory" in str(error)


def test_processes_stop_when_the_engine_is_closed(tmp_path: Path) -> None:
    with at_work(tmp_path / "work") as (_, ended):
        assert multiprocessing.active_children()
    assert [type(each) for each in ended] == [ProcessDied]
    assert multiprocessing.active_children() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("chosen", ["auto", "local"])
def test_without_its_libraries_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    for module in (local_engine, session):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    said = invoke("trace", "report", RECORDED, "-o", tmp_path / "out", "--engine", chosen)
    assert said.exit_code == 1
    assert said.stderr == (f"segstore: a report needs DuckDB, PyArrow and Plotly: {pip_command('report')}\n")
    assert "'duckdb>=" in said.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_duckdb_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: Path
) -> None:
    monkeypatch.setattr(local_engine, "_MEMORY", "1MB")
    said = invoke("trace", "report", trace, "-o", tmp_path / "out")
    assert said.exit_code == 1
    assert said.stderr.splitlines()[-1].startswith("segstore: Out of Memory Error: ")
    assert list(tmp_path.iterdir()) == []


def test_a_report_imports_no_spark_and_starts_no_java(tmp_path: Path) -> None:
    import subprocess

    code = "import sys; from segstore.cli.commands import main; sys.modules['pyspark'] = None; main()"
    said = subprocess.run(
        [sys.executable, "-c", code, "trace", "report", str(RECORDED), "-o", str(tmp_path / "out")],
        env=os.environ | {"PATH": "", "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert said.returncode == 0, said.stderr
    facts = json.loads((tmp_path / "out" / "report.json").read_text())
    assert said.stderr.splitlines() == [*STEPS, f"made with {facts['engine']}"]
    assert facts["engine"].startswith("DuckDB ")
