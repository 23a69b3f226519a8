"""Ratios are taken round by round, a missed goal is the exit status, and the baseline by hand does the codec's work."""

from __future__ import annotations

from pathlib import Path

import pytest

import bench.__main__ as command
from bench import handwritten
from bench.codec import samples
from bench.harness import Effort, Figure, Report, Times, measure, take_turns
from segstore.wire import decode, encode


def test_a_ratio_is_taken_round_by_round_and_contenders_take_turns() -> None:
    times = Times({"a": [1.0, 10.0, 30.0], "b": [2.0, 10.0, 10.0]})
    assert (times.ratio("a", "b"), times.median("a")) == (1.0, 10.0)
    order: list[str] = []
    contenders = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}  # type: ignore[misc, func-returns-value]
    take_turns(contenders, rounds=3)
    assert "".join(order) == "abcbcacab"


def test_time_is_measured_for_one_call() -> None:
    now = 0.0

    def advance(by: float) -> None:
        nonlocal now
        now += by

    tiny = Effort(rounds=2, slice_s=0.0002, scale=0.002)
    times = measure({"short": lambda: advance(0.25), "long": lambda: advance(1)}, tiny, clock=lambda: now)
    assert times.ratio("long", "short") == pytest.approx(4)


def test_the_status_says_whether_goals_are_met_and_the_page_is_made_of_the_kept_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RESULTS", "FIGURES", "PAGE"):
        monkeypatch.setattr(command, name, tmp_path / name.lower())
    for value, status in ((0.8, 0), (0.95, 1)):
        report = Report("Codec", figures=[Figure("decode", value, 0.85, at_most=True)])
        monkeypatch.setattr("bench.codec.run", lambda effort, report=report: report)
        assert command.main(["codec", "--write-docs"]) == status
        assert ("missed: decode" in capsys.readouterr().err) is bool(status)
        assert f"| decode | {value:.2f} × | ≤ 0.85 × |" in (tmp_path / "page").read_text("utf-8")
    with pytest.raises(SystemExit, match="2"):
        command.main(["cdoec"])


def test_code_by_hand_writes_and_reads_what_the_codec_does() -> None:
    for values in samples(3, 2).values():
        for value in values:
            frame = encode(value)
            assert handwritten.encode(value) == frame
            assert handwritten.decode(frame) == value == decode(frame)
