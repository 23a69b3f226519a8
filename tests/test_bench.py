"""Ratios are taken round by round, a missed goal is the exit status, and the baseline by hand does the codec's work."""

from pathlib import Path

import pytest

import bench.__main__ as command
from bench import handwritten
from bench.codec import samples
from bench.harness import Figure, Report
from segstore.wire import decode, encode


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
