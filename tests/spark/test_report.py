"""A report of either engine has, row by row, what the reference has, says what it skipped, and leaves nothing where it
fails; both engines give the same."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from click.testing import Result

from segstore.check import check
from segstore.cli.traces import report as report_cli
from segstore.pipeline.replay_plan import PartOutcome, links, plan, replay
from segstore.pipeline.report import STEPS
from segstore.pipeline.report.analysis_rules import EXCHANGE_COLUMNS, Status
from segstore.pipeline.report.reference import Reference, reference
from segstore.pipeline.report.report import LOCAL_TABLES_BYTES
from segstore.pipeline.trace.rows import trace_rows
from segstore.testing import ServerThread
from segstore.wire import ReadSegment, SetupAppend
from segstore.wire.names import parent_of
from segstore.wire.schema import COMMANDS
from segstore.wire.trace import Record, RecordKind
from tests.pipeline.planted import planted, soup
from tests.pipeline.support import controller_calls, write_capture
from tests.pipeline.test_check import compare
from tests.pipeline.test_compressed import zstd
from tests.processes import invoke
from tests.spark import SPARK
from tests.wire.trace.traces import frame, record

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = SPARK

RECORDED = Path(__file__).parent.parent.parent / "fixtures" / "traces"
HOSTILE = "scope/<script>alert(1)</script>/0.#epoch.0"


class Made:
    """A report, and what the reference says of the same traces."""

    def __init__(self, folder: Path, traces: list[str], said: Result) -> None:
        if not isinstance(said.exception, SystemExit | None):
            raise said.exception
        self.folder = folder
        self.traces = traces
        self.said = said
        self.facts: dict[str, Any] = json.loads((folder / "report.json").read_text())

    @cached_property
    def plain(self) -> Reference:
        return reference(self.traces)

    @cached_property
    def exchanges(self) -> list[dict[str, Any]]:
        return [dict(zip(EXCHANGE_COLUMNS, row, strict=True)) for row in self.plain.exchanges]

    def rows(self, name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.facts[name]["rows"]
        return rows


class CommandLine:
    """`segstore trace report` and `segstore send --parts`, on the session of the tests."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, *arguments: object, local_tables_bytes: int = LOCAL_TABLES_BYTES) -> Result:
        @contextmanager
        def shared(*_: object) -> Iterator[SparkSession]:
            yield self._spark

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report_cli, "spark_session", shared)
            patch.setattr(sys.modules["segstore.cli.traces.send"], "spark_session", shared)
            patch.setattr("segstore.pipeline.report.report.LOCAL_TABLES_BYTES", local_tables_bytes)
            return invoke(*arguments)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    traces = tmp_path_factory.mktemp("traces")
    records = [*planted(3)[0], record(SetupAppend(1, UUID(int=9), HOSTILE, ""), connection=900)]
    whole = write_capture(traces / "a.wtrace", records, a_block=60).read_bytes()
    (traces / "torn.wtrace").write_bytes(whole[: len(whole) // 3])
    for seed in range(2):
        write_capture(traces / f"soup{seed}.wtrace", soup(seed, 1000, 15), a_block=30)
    write_capture(traces / "calls.wtrace", controller_calls())
    return [str(traces), str(RECORDED)]


@pytest.fixture(scope="module")
def by_both(spark: SparkSession, traces: list[str], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Read and followed by Spark, as is the default with it; the tables are DuckDB's."""
    out = tmp_path_factory.mktemp("both") / "out" / "report"
    return Made(out, traces, CommandLine(spark)("trace", "report", *traces, "-o", out, "--engine", "spark"))


@pytest.fixture(scope="module")
def made(traces: list[str], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """By DuckDB alone. The reports of Spark are compared with those of DuckDB."""
    out = tmp_path_factory.mktemp("local") / "out" / "report"
    return Made(out, traces, invoke("trace", "report", *traces, "-o", out))


def test_every_row_equals_the_reference(made: Made) -> None:
    found = table(made.folder, "exchanges")
    assert tuple(found.column_names) == EXCHANGE_COLUMNS
    rows = zip(*(column.to_pylist() for column in found.columns), strict=True)
    assert sorted(map(repr, rows)) == sorted(map(repr, made.plain.exchanges))


def test_both_engines_together_give_the_same_as_one(made: Made, by_both: Made) -> None:
    assert_same(by_both.folder, made.folder)
    both, local = by_both.facts["engine"], made.facts["engine"]
    assert (both.split()[0], local.split()[0]) == ("Spark", "DuckDB")
    assert both.endswith(f" and {local}")
    assert (by_both.said.exit_code, by_both.said.stdout) == (1, f"{by_both.folder / 'report.html'}\n")
    printed = [each.said.stderr.replace(str(each.folder), "").splitlines()[:-1] for each in (by_both, made)]
    assert printed[0] == printed[1]


def table(folder: Path, name: str) -> pa.Table:
    from pyarrow.dataset import dataset

    return dataset(sorted(map(str, (folder / name).glob("*.parquet")))).to_table()


def assert_same(one: Path, other: Path) -> None:
    """Compares two reports of the same traces, number by number and row by row."""
    facts, others = (json.loads((folder / "report.json").read_text()) for folder in (one, other))
    assert facts.pop("engine") != others.pop("engine")
    assert facts.keys() == others.keys()
    for name, fact in facts.items():
        assert fact == others[name], name
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    for name in (path.name for path in one.iterdir() if path.is_dir()):
        found, expected = table(one, name), table(other, name)
        assert [(each.name, each.type) for each in found.schema] == [(each.name, each.type) for each in expected.schema]
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist())), name


def test_the_tables_are_queried_as_the_page_says(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parent.parent.parent / "docs/how-to/report-on-a-trace.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(made.folder.parent)
    rows: list[Any] = []
    exec(program, {"print": rows.append})
    assert sum(row[2] for row in rows[0].fetchall()) == len(made.exchanges)


def test_percentiles_are_those_of_the_nearest_rank_and_less_than_a_bucket_above(made: Made) -> None:
    waits: dict[str, list[int]] = {}
    for exchange in made.exchanges:
        if exchange["status"] in (Status.ANSWERED, Status.REFUSED):
            waits.setdefault(exchange["command"], []).append(exchange["latency_ns"])
    found = {row["command"]: row for row in made.rows("latency_by_command")}
    assert found.keys() == waits.keys()
    from segstore.pipeline.report.analysis import BUCKET_BITS

    for command, times in waits.items():
        times.sort()
        row = found[command]
        assert (row["times"], row["least_ns"], row["most_ns"]) == (len(times), times[0], times[-1])
        assert row["mean_ns"] == sum(times) // len(times)
        for percent, name in ((50, "p50_ns"), (99, "p99_ns")):
            value = times[-(-len(times) * percent // 100) - 1]
            assert value <= row[name] <= value + (value >> BUCKET_BITS)
    assert sum(row["times"] for row in made.rows("latency_histogram")) == sum(map(len, waits.values()))


def test_latencies_by_segment_are_those_of_segments_and_their_transactions(made: Made) -> None:
    found = {row["segment"]: row["times"] for row in table(made.folder, "latency_by_segment").to_pylist()}
    ended = [
        exchange["segment"] for exchange in made.exchanges if exchange["status"] in (Status.ANSWERED, Status.REFUSED)
    ]
    assert any(name is not None and parent_of(name) for name in ended)
    assert found == Counter(parent_of(name) or name for name in ended if name is not None)


def test_the_verdicts_are_the_judges(made: Made) -> None:
    report = check(made.traces)
    compare([tuple(row.values()) for row in table(made.folder, "verdicts").to_pylist()], report)
    assert {row["rule"]: row["broken"] for row in made.facts["rules"] if row["broken"]} == {
        rule: len(verdicts) for rule, verdicts in report.verdicts.by_rule.items()
    }
    unknown = sum(row["unknown"] for row in made.facts["rules"])
    assert unknown == report.verdicts.unknown.total() > 0
    assert {row["rule"] for row in made.rows("verdicts")} == report.verdicts.by_rule.keys()


def test_ends_and_unpaired_are_those_of_the_reference(made: Made) -> None:
    ended = Counter(exchange["status"] for exchange in made.exchanges)
    assert made.facts["status"] == {str(status): ended[status] for status in Status}
    assert made.facts["unpaired"] == sum(
        each["paired"] is False and each["status"] != Status.GIVEN_UP for each in made.exchanges
    )
    lost = [each for each in made.exchanges if each["status"] == Status.LOST]
    assert made.facts["lost_events"] == sum(each["last_event"] - each["first_event"] + 1 for each in lost) > 0


def test_what_was_skipped_is_counted_with_file_and_offset(made: Made) -> None:
    (torn,) = made.plain.skipped
    assert made.facts["skipped_stretches"] == 1
    assert made.facts["skipped_bytes"] == torn[2]
    (row,) = [row for row in made.rows("skipped") if row["kind"] == "skipped"]
    assert (row["file"], row["offset"], row["bytes"], row["error"]) == torn
    (undecoded,) = [row["broken"] for row in made.facts["rules"] if row["rule"] == "decodes"]
    assert made.facts["undecoded_frames"] == undecoded > 0


def test_the_command_says_where_the_page_is_and_what_was_skipped(made: Made) -> None:
    (torn,) = made.plain.skipped
    assert made.said.exit_code == 1
    assert made.said.stdout == f"{made.folder / 'report.html'}\n"
    *printed, engine = made.said.stderr.splitlines()
    assert engine == f"made with {made.facts['engine']}"
    assert printed[: len(STEPS)] == list(STEPS)
    del printed[: len(STEPS)]
    assert printed[0] == f"{torn[0]}: at byte {torn[1]}: {torn[2]} bytes skipped: {torn[3]}"
    lost = made.facts["skipped"]["all"]
    assert len(printed) == (lost if lost <= 20 else 21)
    assert any("bytes skipped: record" in line for line in printed)


def test_errors_are_counted_by_kind(made: Made) -> None:
    failing = {cls.type_name for cls in COMMANDS.values() if cls.is_failure} | {"CONDITIONAL_CHECK_FAILED"}
    wanted = Counter(
        (exchange["reply_command"], exchange["command"])
        for exchange in made.exchanges
        if exchange["reply_command"] in failing
    )
    assert {(row["error"], row["request"]): row["times"] for row in made.rows("errors")} == wanted


def test_controller_calls_are_counted_by_outcome(made: Made) -> None:
    counts = Counter(trace_rows(made.traces, ("rpc", "status", "call_failed")))
    planted_too = {("createStream", "STREAM_EXISTS", True), ("pingTransaction", "COMMITTED", False)}
    assert planted_too <= counts.keys()
    answers = {each: times for each, times in counts.items() if each[1] is not None}
    failed = sum(times for (*_, failed), times in answers.items() if failed)
    assert {(row["rpc"], row["status"], row["failed"]): row["times"] for row in made.rows("calls")} == {
        **answers,
        ("createScope", "(no answer)", False): 1,
    }
    assert (made.facts["calls_made"], made.facts["calls_failed"]) == (sum(answers.values()) + 1, failed)


def test_most_bytes_in_flight_of_a_connection_are_those_of_a_walk_along_it(made: Made) -> None:
    walks: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for exchange in made.exchanges:
        if exchange["append_bytes"] is not None:
            walk = walks.setdefault((exchange["file"], exchange["connection"], exchange["life"]), [])
            walk.append((exchange["block"], exchange["record"], exchange["append_bytes"]))
            if exchange["status"] in (Status.ANSWERED, Status.REFUSED):
                walk.append((exchange["reply_block"], exchange["reply_record"], -exchange["append_bytes"]))
    most = {}
    for who, walk in walks.items():
        under_way = highest = 0
        for *_, step in sorted(walk):
            under_way += step
            highest = max(highest, under_way)
        most[who] = highest
    for row in made.rows("connections"):
        who = (row["file"], row["connection"], row["life"])
        assert row["most_in_flight_bytes"] == most.get(who, 0)
    assert made.rows("connections")[0]["most_in_flight_bytes"] == max(most.values())


def test_premature_ends_of_blocks_and_their_fill_are_counted(made: Made) -> None:
    wanted: Counter[tuple[bool, int]] = Counter()
    for exchange in made.exchanges:
        if exchange["premature"] is not None:
            size = exchange["block_bytes"]
            filled = 100 * min(exchange["append_bytes"], size) // size if size else 100
            wanted[exchange["premature"], filled // 10 * 10] += 1
    assert {(row["premature"], row["fill_percent"]): row["blocks"] for row in made.rows("block_fill")} == wanted
    assert any(premature for premature, _ in wanted)


def test_streams_name_their_writers_and_those_that_never_appended(made: Made) -> None:
    set_up = {(e["file"], e["writer_id"]) for e in made.exchanges if (e["segment"] or "").startswith("scope/s/")
              and e["command"] in ("SETUP_APPEND", "APPEND_BLOCK_END", "CONDITIONAL_APPEND")}  # fmt: skip
    wrote = [e for e in made.exchanges if e["append_bytes"] is not None and (e["segment"] or "").startswith("scope/s/")]
    (row,) = [row for row in made.rows("streams") if row["stream"] == "scope/s"]
    assert row["writers"] == len(set_up)
    assert row["writers_idle"] == len(set_up - {(e["file"], e["writer_id"]) for e in wrote})
    assert row["appends"] == len(wrote)
    assert row["segments_written"] == len({e["segment"] for e in wrote})
    assert row["bytes"] == sum(e["append_bytes"] for e in wrote)


def test_connections_that_are_open_are_counted_over_time(made: Made) -> None:
    lives: dict[tuple[Any, ...], list[int]] = {}
    opens: Counter[tuple[Any, ...]] = Counter()
    for file, connection, ts_ns, kind in trace_rows(made.traces, ["file", "connection", "ts_ns", "kind"]):
        if kind not in ("skipped", "call"):
            opens[file, connection] += kind == "open"
            lives.setdefault((file, connection, max(1, opens[file, connection])), []).append(ts_ns)
    ticks = made.facts["ticks"]
    for row in made.rows("over_time")[::10]:
        start = (ticks["first"] + row["tick"]) * ticks["width_ns"]
        open_now = sum(min(at) < start + ticks["width_ns"] and max(at) >= start for at in lives.values())
        assert row["connections"] == open_now


def test_page_json_and_parquet_are_there_and_nothing_beside_them(made: Made) -> None:
    from segstore.pipeline.report.folder import PAGE

    assert [each.name for each in made.folder.parent.iterdir()] == ["report"]
    text = (made.folder / PAGE).read_text()
    assert "alert(1)</script>" not in text
    assert made.facts["engine"] in text
    assert table(made.folder, "exchanges").num_rows == len(made.exchanges)
    assert any(".zstd" in each.name for each in (made.folder / "exchanges").iterdir())


def test_each_engine_alone_gives_the_same_of_planted_damaged_compressed_and_captured_traces(
    spark: SparkSession, tmp_path: Path
) -> None:
    from bench.pipeline import write_traffic
    from tests.pipeline.trace.test_packets import mixed, written

    traces = tmp_path / "traces"
    traces.mkdir()
    write_traffic(traces / "busy.wtrace", 5_000, writers=6, connections=3)
    busy = bytearray((traces / "busy.wtrace").read_bytes())
    (traces / "busy.wtrace.gz").write_bytes(gzip.compress(busy))
    (traces / "cut.wtrace.zst").write_bytes(zstd(busy)[:-1000])
    for at in range(500, len(busy), 10_000):
        busy[at] ^= 1
    (traces / "damaged.wtrace").write_bytes(busy)
    (traces / "not.jsonl").write_text("{}\n")
    written(traces / "some.pcap", mixed(random.Random(1)))
    chance = random.Random(2)
    back = [each._replace(ts_ns=chance.choice((-1, 1)) * chance.getrandbits(62)) for each in soup(2, 600, 5)]
    write_capture(traces / "clock_set_back.wtrace", back)
    (traces / "empty.wtrace").touch()
    write_capture(traces / "calls.wtrace", controller_calls())
    write_capture(traces / "planted.wtrace", planted(3, times=1, connections=4)[0], a_block=60)
    command = CommandLine(spark)
    for name, engine, most in (("spark", "spark", -1), ("local", "local", 0)):
        said = command("trace", "report", traces, "-o", tmp_path / name, "--engine", engine, local_tables_bytes=most)
        assert said.exit_code == 1, said.output
    assert_same(tmp_path / "spark", tmp_path / "local")
    assert json.loads((tmp_path / "spark" / "report.json").read_text())["engine"].startswith("Spark ")
    facts = json.loads((tmp_path / "local" / "report.json").read_text())
    assert facts["skipped_stretches"] > 4
    means = [row["mean_ns"] for row in table(tmp_path / "local", "latency_by_command").to_pylist()]
    assert min(means) < -1_000_000_000
    assert {row["file"] for row in table(tmp_path / "local", "exchanges").to_pylist()} > {str(traces / "some.pcap")}


@pytest.mark.parametrize("name", ["spark", "local"])
def test_strict_fails_with_file_and_offset_and_leaves_nothing(spark: SparkSession, tmp_path: Path, name: str) -> None:
    trace = write_capture(tmp_path / "a.wtrace", [record(ReadSegment("s", 0, 1, "", 1)), record(frame(9, b"\0"))])
    said = CommandLine(spark)("trace", "report", trace, "-o", tmp_path / "out", "--strict", "--engine", name)
    assert said.exit_code == 1
    assert re.search(rf"segstore: {re.escape(str(trace))}: at byte \d+: record 1: READ_SEGMENT", said.stderr)
    assert [each.name for each in tmp_path.iterdir()] == ["a.wtrace"]


class Counting:
    """Replays nothing; says what it was given."""

    def __call__(self, part: int, records: list[Record]) -> PartOutcome:
        if part == 1:
            raise ConnectionRefusedError("refused")
        frames = [each for each in records if each.kind is RecordKind.FRAME]
        connections = sorted({str(record.connection) for record in records})
        return PartOutcome(part, len(records), len(frames), 0, connections)


@pytest.mark.needs("PySpark 4.1 or newer")
def test_each_part_of_a_plan_is_replayed_whole_and_in_order(spark: SparkSession, traces: list[str]) -> None:
    reader = spark.read.format("segstore.trace")
    columns = "file,block,record,kind,ts_ns,connection,direction,command,segment,source,writer_id,fields,frame"
    rows = reader.option("columns", columns).option("tokens", "true").load(traces).where("kind <> 'skipped'")
    found = plan(links(rows), 3)
    outcomes = replay(rows, found, Counting())
    assert [outcome.part for outcome in outcomes] == [0, 1, 2]
    assert outcomes[1].error == "ConnectionRefusedError: refused"
    for part in (0, 2):
        assert outcomes[part].requests == found.parts[part].records
        assert len(outcomes[part].differences) == len(found.parts[part].connections)


@pytest.mark.needs("PySpark 4.1 or newer")
def test_a_trace_is_sent_by_tasks_and_what_differs_is_reported(spark: SparkSession) -> None:
    command = CommandLine(spark)
    with ServerThread() as servers:
        server = servers.serve()
        send = ("send", RECORDED / "write.jsonl", "--parts", 2, "--to", f"{server.host}:{server.port}")
        again = command(*send)
        twice = command(*send)
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr.endswith(" 0 differ\n")
    assert twice.exit_code == 1
    assert "SEGMENT_ALREADY_EXISTS came instead of SEGMENT_CREATED" in twice.stdout
