"""The benchmarks run, at sizes too small to mean anything, and say what they found."""

from __future__ import annotations

import gc
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench.__main__ as command
from bench import pages
from bench.harness import Effort, Figure, Report, Times, geometric_mean, measure, take_turns
from bench.memory import PAYLOAD_BYTES, peak_bytes
from segstore.wire import SegmentRead, encode, encode_parts
from segstore.wire.codec.codec import SPEED

TINY = Effort(rounds=2, slice_s=0.0002, scale=0.002)


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("bench.codec.WARM", (4, 2))
    monkeypatch.setattr("bench.codec.COLD", (4, 4))
    gc.freeze()  # or each collection between two measurements walks through all that the test run has gathered
    yield
    gc.unfreeze()


@pytest.mark.parametrize(
    "name",
    [
        "codec",
        "memory",
        "framing",
        pytest.param("server", marks=pytest.mark.needs("Linux's /proc")),
        pytest.param("toxics", marks=pytest.mark.needs("Linux's /proc")),
    ],
)
def test_each_benchmark_finds_a_figure_for_each_goal(name: str) -> None:
    report: Report = importlib.import_module(f"bench.{name}").run(TINY)
    expected = {"codec": 6 if SPEED is None else 12, "memory": 6, "framing": 3, "server": 3, "toxics": 2}
    assert len(report.figures) == expected[name]
    assert all(figure.value >= 0 and figure.goal > 0 for figure in report.figures)
    for heading, rows in report.tables:
        assert rows
        assert {len(row) for row in rows} == {len(heading)}


def test_a_payload_is_not_copied_on_its_way_through_the_codec() -> None:
    figures = importlib.import_module("bench.memory").run(TINY).figures
    assert [figure.name for figure in figures if not figure.met] == []


def test_a_copy_of_a_payload_would_be_seen() -> None:
    read = SegmentRead("a", 0, False, False, bytes(PAYLOAD_BYTES), 7)
    assert peak_bytes(lambda: encode(read)) > PAYLOAD_BYTES > 100 * peak_bytes(lambda: encode_parts(read))


def test_a_ratio_is_taken_round_by_round() -> None:
    times = Times({"a": [1.0, 10.0, 30.0], "b": [2.0, 10.0, 10.0]})
    assert times.ratio("a", "b") == 1.0
    assert times.median("a") == 10.0
    assert geometric_mean([2, 8]) == pytest.approx(4)


def test_contenders_take_turns_and_the_first_of_a_round_changes() -> None:
    order: list[str] = []

    def contender(name: str) -> float:
        order.append(name)
        return 1.0

    take_turns({name: lambda name=name: contender(name) for name in "abc"}, rounds=3)  # type: ignore[misc]
    assert "".join(order) == "abcbcacab"


def test_time_is_measured_for_one_call() -> None:
    now = 0.0

    def advance(by: float) -> None:
        nonlocal now
        now += by

    times = measure({"short": lambda: advance(0.25), "long": lambda: advance(1)}, TINY, clock=lambda: now)
    assert times.ratio("long", "short") == pytest.approx(4)
    assert times.median("short") == pytest.approx(0.25)


def test_the_command_runs_what_is_named_and_its_status_says_whether_goals_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RESULTS", "FIGURES", "FOLDER"):
        monkeypatch.setattr(pages, name, tmp_path / name.lower())
    for value, status in ((0.8, 0), (0.95, 1)):
        report = Report("Codec", figures=[Figure("decode", value, 0.85, at_most=True)])
        monkeypatch.setattr("bench.codec.run", lambda effort, report=report: report)
        assert command.main(["codec", "--quick", "--json", str(tmp_path / "found.json")]) == status
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["benchmarks"]["codec"]["figures"][0]["met"] is (status == 0)
        said = capsys.readouterr()
        assert f"| decode | {value:.2f} × | ≤ 0.85 × |" in said.out
        assert ("missed: decode" in said.err) is bool(status)


def test_a_name_that_is_no_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["cdoec"])
    assert "'cdoec' is no benchmark" in capsys.readouterr().err
