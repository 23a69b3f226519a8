"""`segstore pipeline report | replay` on the command line, as far as it goes without Spark."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

from segstore.cli import pipeline as pipeline_cli
from segstore.cli.commands import main
from segstore.cli.pipeline import replay_part
from segstore.pipeline import session
from segstore.testing import ServerThread
from segstore.traces import TraceFile

RECORDED = Path(__file__).parent.parent / "fixtures" / "traces"


@pytest.mark.parametrize("arguments", [["report", "-o", "out"], ["replay"], ["replay", "--to", "127.0.0.1:1"]])
def test_paths_that_name_no_trace_are_an_error_before_java_is_started(tmp_path: Path, arguments: list[str]) -> None:
    nowhere = str(tmp_path / "*.wtrace")
    found = CliRunner().invoke(main, ["pipeline", arguments[0], nowhere, *arguments[1:]])
    assert found.exit_code == 1
    assert f"{nowhere}: no such trace" in found.output


@pytest.mark.parametrize("fails", [False, True])
def test_the_session_of_a_command_ends_with_it(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    running = MagicMock()
    running.sparkContext.defaultParallelism = 2
    asked = MagicMock(return_value=running)
    monkeypatch.setattr(session, "session", asked)
    files = [str(RECORDED / "write.jsonl")]
    with pytest.raises(ValueError, match="fails") if fails else nullcontext(), pipeline_cli._spark("local[2]", files):
        running.stop.assert_not_called()
        if fails:
            raise ValueError("fails")
    asked.assert_called_once_with("local[2]", app="segstore pipeline", quick=True)
    running.conf.set.assert_called_once_with("spark.sql.shuffle.partitions", "2")
    running.stop.assert_called_once_with()


@pytest.mark.parametrize(
    ("said", "told"),
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
def test_the_most_informative_line_of_an_error_of_spark_is_reported(said: str, told: str) -> None:
    assert pipeline_cli._telling(said) == told


@pytest.mark.parametrize("arguments", [["report", "-o", "out"], ["replay", "--to", "127.0.0.1:1"]])
def test_without_spark_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    trace = str(RECORDED / "write.jsonl")
    found = CliRunner().invoke(main, ["pipeline", arguments[0], trace, *arguments[1:]])
    assert found.exit_code == 1
    assert found.stderr == "segstore: Spark is not installed: pip install 'segstore[spark]'\n"
    assert not Path("out").exists()


def test_without_a_store_the_parts_are_printed(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["pipeline", "replay", str(RECORDED / "read_group.jsonl"), "--parts", "2"])
    assert found.exit_code == 0
    assert found.output.startswith("part 0: 7 connections")
    assert len(found.output.splitlines()) == 2


def test_a_part_is_replayed_at_a_store_and_its_replies_compared() -> None:
    with TraceFile(RECORDED / "write.jsonl") as trace:
        records = list(trace.records())
    with ServerThread() as servers:
        server = servers.serve()
        again = replay_part(server.host, server.port, 10.0, 3, records)
        twice = replay_part(server.host, server.port, 10.0, 3, records)
    assert (again.part, again.different, again.error) == (3, 0, None)
    assert again.requests > 10
    assert twice.different > 0
    assert "SEGMENT_ALREADY_EXISTS came instead of SEGMENT_CREATED" in twice.differences[0]
    with pytest.raises(OSError, match="127"):
        replay_part("127.0.0.1", 1, 1.0, 0, records)
