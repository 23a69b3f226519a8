"""The benchmarks of the pipeline, without Spark: what they write, what one process finds, what their reports say."""

from __future__ import annotations

from pathlib import Path

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
