"""The benchmarks of the pipeline, without Spark: what they write, what one process finds, what their reports say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.harness import Effort, Figure, Report, Times
from bench.pages import section

TINY = Effort(rounds=2, slice_s=0.001, scale=0.001)

pytestmark = pytest.mark.needs("Java 17 or newer")  # where it is, so is what the pipeline needs


def on_page(name: str, report: Report) -> str:
    text = section({"name": name, "machine": {}, "quick": False, "seconds": 1.0, **report.to_dict()})
    assert text.startswith(f"## {report.title}\n\n*{report.question}*\n\n{report.says}\n\n[![")
    return text


def test_one_process_finds_the_same_whether_it_reads_by_column_or_not(tmp_path: Path) -> None:
    from bench import matching
    from bench.traffic import write_traffic

    trace = str(tmp_path / "small.wtrace")
    records = write_traffic(Path(trace), 100_000, writers=6, connections=3)
    seconds: matching.Seconds = {}
    expected = matching.measure_alone([trace], seconds)
    read, analysed = (expected[job.name, trace] for job in matching.JOBS)
    assert read == records
    exchanges, violations = analysed
    assert 0 < exchanges < records
    assert violations == 0
    assert {job: set(ways) for job, ways in seconds.items()} == {
        job.name: {matching.ALONE, matching.BY_COLUMN} for job in matching.JOBS
    }


def test_ways_that_find_different_things_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import matching

    odd = matching.Job("odd", "counting", {"one": lambda trace: 1, "two": lambda trace: 2}, lambda spark, trace: 1)
    monkeypatch.setattr(matching, "JOBS", (odd,))
    with pytest.raises(RuntimeError, match="counting, two: 2 was found, 1 expected"):
        matching.measure_alone(["trace"], {})


def test_the_curve_says_from_which_size_on_spark_pays() -> None:
    from bench import matching

    _, analysis = matching.JOBS
    report = Report("Spark beside one process", question="From which size?")
    ways = {
        matching.ALONE: [1.0, 4.0, 16.0],
        matching.BY_COLUMN: [0.5, 2.0, 8.0],
        matching.LOCAL: [3.0, 3.6, 8.0],
        matching.CLUSTER: [0.9, 8.0, 20.0],
    }
    report.says = matching.curve(report, analysis, (8, 32, 128), (10, 40, 160), {analysis.name: ways})
    assert report.says == (
        "For the analysis, local[2] is faster than one process from 32 MB on (0.50 of the time at 128 "
        "MB); a master with "
        "two workers is slower than one process at every size (1.2 times the time at 128 MB)."
    )
    assert "| 32 | 40 | 4.00 | 0.50 | 0.90 | 2.00 |" in on_page("matching", report)
    (picture,) = report.pictures
    assert picture.series[matching.LOCAL] == [3.0, 0.9, 0.5]


def test_a_trace_for_matching_has_a_reply_to_every_request(tmp_path: Path) -> None:
    from bench.matching import write_trace
    from segstore.pipeline.report.reference import reference

    trace = tmp_path / "some.wtrace"
    frames = write_trace(trace, 400, connections=2)
    found = reference(str(trace))
    assert found.frames == frames
    assert {row[12] for row in found.exchanges} == {"answered"}
    assert found.violations == []


def test_decoding_in_one_process_is_measured_and_told(tmp_path: Path) -> None:
    from bench import pipeline
    from bench.traffic import write_traffic

    trace = tmp_path / "some.wtrace"
    count = write_traffic(trace, 200_000)
    decoded = pipeline._one_process(trace, TINY)
    assert decoded.ratio(pipeline.PLAIN, pipeline.TOGETHER) > 0
    assert pipeline._planning(trace) > 0
    report = Report("Traces as rows", question="How fast?")
    report.figures += [Figure(str(at), at + 1.0, 1.0, at_most=False) for at in range(5)]
    times = Times({name: [2.0, 4.0] for name in (pipeline.ALONE, pipeline.TUPLES, pipeline.SPARK)})
    pipeline._say(report, times, count)
    assert "Spark on two cores is 4.0 times as fast as one process" in on_page("pipeline", report)
    (picture,) = report.pictures
    assert list(picture.series.values()) == [[count / 3000] * 3]


def test_a_lag_counts_from_when_the_event_had_its_turn_and_not_in_the_warm_up() -> None:
    from bench import stream_lag

    second = 1_000_000_000
    turns = range(0, 10 * second, second // 100)
    lags = [(at, 900_000_000 if at < 3 * second else 20_000_000 if at < 6.5 * second else 30_000_000) for at in turns]
    plain = [(at, 2_000_000) for at in turns]
    row, spark_ms, plain_ms, growth = stream_lag.row_of(100, 10.0, 0, lags, plain, [0, 40, 50, 60])
    assert (spark_ms, plain_ms, growth) == (pytest.approx(25, abs=5), 2.0, 1.5)
    assert row[0] == "100"
    assert row[3] == "50"


@pytest.mark.needs("Linux's /proc")
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("grpc_runs")
def test_a_plain_reader_sees_all_that_is_written_at_a_rate() -> None:
    import asyncio

    from bench import stream_lag
    from bench.processes import serving

    with serving() as server:
        uri = f"tcp://{server.controller}"
        asyncio.run(stream_lag._make(uri, "steady"))
        plain = stream_lag._Plain(uri, "steady")
        plain.start()
        assert plain.ready.wait(60)
        stream_lag.write(uri, "steady", 200, 0.25)
        plain.wait_for(50)
        plain.end()
    assert len(plain.lags) == 50
    assert all(lag > 0 for _, lag in plain.lags)


def test_an_event_log_gives_the_time_and_the_shuffle_of_each_kind_of_stage(tmp_path: Path) -> None:
    from bench.large_trace import FOLLOWING, READING, SQL, stages_of

    def submitted(number: int, group: str, *scopes: str) -> dict[str, Any]:
        rdds = [{"Scope": json.dumps({"id": "1", "name": name})} for name in scopes]
        info = {"Stage ID": number, "RDD Info": [*rdds, {}]}
        properties = {"spark.jobGroup.id": group}
        return {"Event": "SparkListenerStageSubmitted", "Stage Info": info, "Properties": properties}

    def ended(number: int, run_ms: int, shuffled: int) -> dict[str, Any]:
        metrics = {"Executor Run Time": run_ms, "Shuffle Write Metrics": {"Shuffle Bytes Written": shuffled}}
        return {"Event": "SparkListenerTaskEnd", "Stage ID": number, "Task Metrics": metrics}

    def stored(block: str, size: int) -> dict[str, Any]:
        return {"Event": "SparkListenerBlockUpdated", "Block Updated Info": {"Block ID": block, "Disk Size": size}}

    events = [
        {"Event": "SparkListenerApplicationStart"},
        submitted(0, "quarter", "BatchScan segstore.trace"), ended(0, 9_000, 900),
        submitted(1, "quarter", "Sort", "MapInArrow"), ended(1, 9_000, 900),
        stored("rdd_7_0", 50), stored("broadcast_3", 900),
        submitted(2, "whole", "BatchScan segstore.trace"), ended(2, 1_000, 100), ended(2, 1_500, 50),
        submitted(3, "whole", "Sort", "MapInArrow"), ended(3, 4_000, 30),
        stored("rdd_19_0", 40), stored("rdd_19_1", 30), stored("rdd_19_1", 0),
        submitted(4, "whole", "MapInArrow", "InMemoryTableScan"), ended(4, 500, 7),
        {"Event": "SparkListenerTaskEnd", "Stage ID": 4, "Task Metrics": None},
    ]  # fmt: skip
    (tmp_path / "app").write_text("".join(f"{json.dumps(each)}\n" for each in events))
    found = stages_of(tmp_path)
    assert found.seconds == {READING: 2.5, FOLLOWING: 4.0, SQL: 0.5}
    assert (found.shuffled, found.shuffled_first, found.kept) == (187, 150, 70)


def test_a_large_trace_is_equal_files_and_its_report_compares_them_with_one_process(tmp_path: Path) -> None:
    from bench import large_trace

    records = large_trace.make_trace(tmp_path, 400_000)
    whole, quarter = ([each.read_bytes() for each in (tmp_path / name).iterdir()] for name in ("whole", "quarter"))
    assert (len(whole), len(quarter)) == (large_trace.FILES, large_trace.FILES // 4)
    assert len({*whole, *quarter}) == 1
    with pytest.raises(RuntimeError, match=r"20 times \(1, 2\) expected"):
        large_trace._check([(5, 10), (20, 41)], (1, 2))
    stages = large_trace.Stages(dict.fromkeys(large_trace.STAGES, 2.0), 60 * records, 20 * records, 30 * records)
    run = large_trace.Run([3.0, 10.0], [8, 9], [100, 110], stages)
    report = Report("A large trace", question="Does it?")
    large_trace._report(report, {large_trace.LOCAL: run}, [5.0, 20.0], 5_000_000_000, records, goals=True)
    assert [(each.value, each.met) for each in report.figures] == [(0.5, True), (1.1, True)]
    page = on_page("large_trace", report)
    assert "local[2] takes 0.50 of the time of one process. 60 bytes are shuffled per record" in page
    assert "the result keeps 30 bytes per record on disk" in page


def test_a_task_and_a_name_of_the_replay_plan_have_a_price(tmp_path: Path) -> None:
    from bench import planning

    per_block, block_bytes = planning._planning(tmp_path, 3_000_000)
    assert 0 < per_block < 1
    assert block_bytes > 100_000
    for seconds, size in (planning._pickling(), planning._replay_plan(20)):
        assert seconds > 0
        assert 50 < size < 5_000
