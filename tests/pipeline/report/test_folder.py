"""A report's folder is refused before there is any work, Spark's start among it, and nothing is left where it fails."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from segstore.pipeline import session
from segstore.pipeline.report.folder import PAGE, ReportError, report_folder
from tests.processes import invoke

RECORDED = Path(__file__).parent.parent.parent.parent / "fixtures" / "traces" / "write.jsonl"


class Interrupted(Exception):
    """What ends a report before it is whole."""


def fail_in(folder: Path, *, replace: bool = False) -> None:
    with report_folder(folder, replace=replace) as made:
        (made / PAGE).write_text("new")
        raise Interrupted


@pytest.fixture
def old(tmp_path: Path) -> Path:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / PAGE).write_text("old")
    return folder


def below(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


def test_a_report_is_in_its_place_only_when_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "report"
    with report_folder(folder) as made:
        (made / PAGE).write_text("new")
        assert not folder.exists()
        assert made.stat().st_dev == folder.parent.stat().st_dev
    assert below(tmp_path) == ["a", "a/b", "a/b/report", f"a/b/report/{PAGE}"]
    assert folder.stat().st_mode & 0o111


def test_one_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fail_in(tmp_path / "a" / "report")
    assert below(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("number", "name", "said"),
    [(errno.ENOSPC, None, "No space left on device"), (errno.EIO, "part-0.parquet", "Input/output error")],
)
def test_an_error_of_writing_names_the_folder_and_leaves_nothing(
    number: int, name: str | None, said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "report"
    with pytest.raises(ReportError) as refused, report_folder(folder) as made:
        raise OSError(number, "of a library's own", name and str(made / name))
    assert str(refused.value) == f"{folder}: cannot be written: {said}"
    assert below(tmp_path) == []


def test_an_old_report_stays_until_the_new_one_is_whole(tmp_path: Path, old: Path) -> None:
    with pytest.raises(Interrupted):
        fail_in(old, replace=True)
    assert (old / PAGE).read_text() == "old"
    with report_folder(old, replace=True) as made:
        (made / PAGE).write_text("new")
    assert (old / PAGE).read_text() == "new"
    assert below(tmp_path) == ["old", f"old/{PAGE}"]


def test_a_place_that_is_taken_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "report"

    def taken() -> None:
        with report_folder(folder):
            folder.mkdir()
            (folder / "mine").write_text("kept")

    with pytest.raises(ReportError, match="is not a report") as caught:
        taken()
    assert caught.value.path == folder
    assert below(tmp_path) == ["report", "report/mine"]


def test_a_folder_that_holds_the_traces_is_not_replaced(old: Path) -> None:
    trace = old / "run.wtrace"
    trace.write_bytes(b"")
    refused = pytest.raises(ReportError, match=r"contains .*run\.wtrace, which is being read")
    with refused, report_folder(old, [str(trace)], replace=True):
        raise AssertionError("it was entered")
    assert below(old) == [PAGE, "run.wtrace"]


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Sessions that were asked for; asking for one fails."""
    asked: list[object] = []

    def session_of(*arguments: object, **_: object) -> None:
        asked.append(arguments)
        raise session.SparkMissing("Spark", "a session was asked for")

    monkeypatch.setattr(session, "session", session_of)
    return asked


@pytest.mark.parametrize(
    ("out", "options", "says"),
    [
        ("old", [], "already contains a report; --replace writes over it"),
        ("mine", ["--replace"], "exists and is not a report"),
        ("mine/file", [], "exists and is not a report"),
        ("mine/file/report", [], "cannot be written: Not a directory"),
        ("x" * 300, [], "cannot be written: File name too long"),
    ],
)
def test_a_folder_is_refused_before_spark_is_started(
    tmp_path: Path, old: Path, no_session: list[object], out: str, options: list[str], says: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")
    before = below(tmp_path)
    report = ["trace", "report", str(RECORDED), "--engine", "spark"]
    said = invoke(*report, "-o", tmp_path / out, *options)
    assert said.exit_code == 1
    assert said.stderr == f"segstore: {tmp_path / out}: {says}\n"
    assert no_session == []
    assert below(tmp_path) == before
