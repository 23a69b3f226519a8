"""`segstore trace report` on the command line, as far as it goes without Spark."""

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from segstore.cli.traces import report as report_cli
from segstore.pipeline import session
from segstore.wire.extras import pip_command
from tests.looped import looped
from tests.processes import invoke

RECORDED = Path(__file__).parent.parent / "fixtures" / "traces"
REPORT = ["trace", "report", "-o", "out"]
SEND = ["send", "--parts", "2", "--to", "127.0.0.1:1"]


@pytest.mark.parametrize("arguments", [REPORT, SEND])
def test_paths_that_name_no_trace_are_an_error_before_java_is_started(tmp_path: Path, arguments: list[str]) -> None:
    nowhere = str(tmp_path / "*.wtrace")
    found = invoke(*arguments, nowhere)
    assert found.exit_code == 1
    assert f"{nowhere}: no such trace" in found.output


@looped(
    ("error", "line"),
    [
        ("Answer from Java side is empty", "Answer from Java side is empty"),
        ("\n[SOME_CLASS] It is so.\n\nJVM stacktrace:\nat here", "[SOME_CLASS] It is so."),
        (
            "An error occurred while calling o61.parquet.\n: java.io.IOException: No space left on device\n\tat here",
            "java.io.IOException: No space left on device",
        ),
        (
            "An error occurred while calling o1\n: Traceback (most recent call last):\n  File\nValueError: it is b\nat",
            "ValueError: it is b",
        ),
        ("An error occurred while calling o1.count", "An error occurred while calling o1.count"),
        ("Traceback (most recent call last):", "Traceback (most recent call last)"),
        ("", ""),
    ],
)
def test_the_most_informative_line_of_an_error_of_spark_is_reported(error: str, line: str) -> None:
    assert report_cli._informative_line(error) == line


@pytest.mark.parametrize("arguments", [[*REPORT, "--engine", "spark"], SEND])
def test_without_spark_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    trace = str(RECORDED / "write.jsonl")
    found = invoke(*arguments, trace)
    assert found.exit_code == 1
    assert found.stderr == f"segstore: Spark is not installed: {pip_command('spark')}\n"
    assert not Path("out").exists()


def test_a_master_is_no_option_of_the_local_engine(tmp_path: Path) -> None:
    trace = str(RECORDED / "write.jsonl")
    arguments = ["-o", str(tmp_path / "out"), "--engine", "local", "--master", "local[1]"]
    found = invoke("trace", "report", trace, *arguments)
    assert (found.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "--master is for --engine spark" in found.stderr


def test_traces_that_are_too_large_for_one_machine_are_analysed_on_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trace = RECORDED / "write.jsonl"
    monkeypatch.setattr(report_cli, "_LOCAL_BYTES", trace.stat().st_size - 1)
    monkeypatch.setattr(session, "session", MagicMock(side_effect=session.SparkMissing("Java", "Spark was asked for")))
    found = invoke("trace", "report", trace, "-o", tmp_path / "out")
    assert found.stderr == "segstore: Spark was asked for\n"
