from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from segstore.check import Report, check, records_of, reduced
from segstore.traces import TraceFile, judged, write_trace
from segstore.wire.history import RULES, Broken, Key, Place, Verdicts, judge
from segstore.wire.trace import Damage, Direction, Metadata, Record, RecordKind
from tests.processes import invoke
from tests.wire.history.support import lines_of

FIXTURES = Path(__file__).parent.parent / "fixtures" / "traces"
PACKET = b"\6\0\0\0"
"""The first bytes of a packet's block in a file of packets."""
HISTORY = """
    w send {"segment": "s", "event": "a"} → ok {"offset": 0}
    r poll {"segment": "s"} → ok {"events": [[0, "a"], [3, "b"]]}
"""


def with_loose_bytes(path: Path) -> Path:
    """Writes a trace whose first connection ends with bytes that form no frame."""
    with TraceFile(FIXTURES / "write.jsonl") as trace:
        records = list(trace.records())
    last = records[-1]
    records.insert(-1, Record(last.ts_ns, last.connection, Direction.REQUEST, RecordKind.BYTES, b"nonsense"))
    write_trace(path, records, Metadata)
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = invoke("check", *arguments)
    return result.exit_code, result.output


@pytest.mark.parametrize("form", ["trace.wtrace", "trace.jsonl"])
def test_a_trace_of_any_form_is_judged(tmp_path: Path, form: str) -> None:
    path = with_loose_bytes(tmp_path / form)
    report = check([path])
    assert [verdict.rule for verdict in report.broken] == ["frames-only"]
    packed = tmp_path / f"{form}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [verdict.rule for verdict in check([packed]).broken] == ["frames-only"]


def test_a_torn_trace_is_judged_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    path = with_loose_bytes(tmp_path / "trace.wtrace")
    path.write_bytes(path.read_bytes()[:-9])
    report = check([path])
    assert not report.broken
    (part,) = report.skipped
    assert str(path) in part
    assert part in report.text()


def test_a_torn_history_is_judged_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("\n" + "\n".join([*lines_of(HISTORY), '{"type": "inv']))
    status, text = run(path)
    assert status == 1
    assert "garbage-read" in text
    assert f"not read: {path}: line 6: it is incomplete" in text


def test_behind_a_part_that_cannot_be_read_nothing_is_certain(tmp_path: Path) -> None:
    path = with_loose_bytes(tmp_path / "trace.jsonl")
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, "nonsense", *lines]))
    report = check([path])
    assert not report.broken
    assert report.verdicts.unknown["frames-only", "parts of the recording could not be read"] == 1
    assert run(path, "--junit", tmp_path / "junit.xml")[0] == 1
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (len(suite), suite.get("errors"), len(suite.findall("*/error"))) == (len(RULES) + 1, "1", 1)
    whole = with_loose_bytes(tmp_path / "whole.jsonl")
    shared = Broken("gap", Key("segment", "s"), (Place(str(whole), 0, 0, 1, 1),), "")
    assert [verdict.rule for verdict in check([path, whole]).broken] == ["frames-only"]
    assert Verdicts([shared], Counter(), 1).known({str(path)}).broken == []
    with TraceFile(whole) as trace:
        records = list(trace.records())
    assert judged(records, []).broken
    assert not judged(records, [Damage(0, 1, False, "")]).broken  # as the page and filters show it


def test_behind_a_missing_packet_nothing_is_certain(tmp_path: Path) -> None:
    path = tmp_path / "trace.pcapng"
    with TraceFile(FIXTURES / "write.jsonl") as trace:
        records = list(trace.records())
    write_trace(path, records, Metadata)
    set_up = next(record.data for record in records if record.data.startswith(b"\0\0\0\1\0"))  # SETUP_APPEND
    start, _, end = path.read_bytes().partition(set_up)
    begin, after = start.rindex(PACKET), end.index(PACKET)
    path.write_bytes(start[:begin] + end[after:])
    report = check([path])
    assert not report.broken
    assert report.verdicts.unknown["reply-without-request", "parts of the recording could not be read"] == 5


def test_large_traces_are_judged_in_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = sorted(FIXTURES.glob("*.jsonl"))
    report = check(traces)
    monkeypatch.setattr("segstore.check.LARGE_BYTES", 0)
    assert check(traces) == report
    assert report.verdicts.records


@pytest.mark.parametrize(
    ("program", "fact"), [("import os, signal; os.kill(os.getpid(), 9)", "by signal 9"), ("", "with status 0")]
)
def test_a_second_process_that_ends_is_an_error(monkeypatch: pytest.MonkeyPatch, program: str, fact: str) -> None:
    monkeypatch.setattr("segstore.check.LARGE_BYTES", 0)
    monkeypatch.setattr("segstore.check._JUDGE_KEYS", program)
    status, text = run(FIXTURES / "write.jsonl")
    assert (status, f"ended {fact}" in text) == (2, True), text


def test_an_invalid_limit_of_compressed_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress((FIXTURES / "write.jsonl").read_bytes()))
    monkeypatch.setenv("SEGSTORE_MAX_DECOMPRESSED_BYTES", "many")
    status, text = run(path)
    assert (status, "is a positive number of bytes, not 'many'" in text) == (2, True)


def test_correct_traces_have_no_verdict() -> None:
    report = check([FIXTURES])
    assert not report.broken, report.text()


def test_forms_of_a_report(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("\n".join(lines_of(HISTORY)))
    status, text = run(path, "--junit", tmp_path / "junit.xml")
    assert status == 1
    assert "garbage-read" in text
    assert f"{path}: line 4" in text
    status, text = run(path, "--json")
    document = json.loads(text)
    assert [broken["rule"] for broken in document["broken"]] == ["garbage-read"]
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert len(suite) == len(RULES)
    assert [case.get("name") for case in suite if len(case)] == ["garbage-read"]
    assert run(FIXTURES / "write.jsonl")[0] == 0
    verdict = Broken("garbage-read", Key("segment", "s"), (Place("f", 0, 0, 0, 1),), "text", b"\xff", (b"a", 1))
    (broken,) = Report(Verdicts([verdict], Counter(), 1), []).to_dict()["broken"]
    assert (broken["expected"], broken["actual"]) == ("\\xff", ["a", 1])


def test_the_fewest_exchanges_that_break_a_rule(tmp_path: Path) -> None:
    path = with_loose_bytes(tmp_path / "trace.jsonl")
    records = list(records_of([str(path)], [], set()))
    (verdict,) = check([path]).broken
    fewest = reduced(records, verdict)
    assert len(fewest) == 1  # the bytes
    assert [broken.rule for broken in judge(fewest).broken] == ["frames-only"]
    status, _ = run(path, "--out", tmp_path / "out")
    assert status == 1
    (fixture,) = (tmp_path / "out").iterdir()
    two = run(path, with_loose_bytes(tmp_path / "other.jsonl"), "--out", tmp_path / "two")
    assert two[0] == 1
    assert len(list((tmp_path / "two").iterdir())) == 2
    assert [verdict.rule for verdict in check([fixture]).broken] == ["frames-only"]


@pytest.mark.parametrize(
    ("content", "fact"), [(None, "no such"), (b"text", "not a trace"), (b'{"type": "invoke", "process": 1', "line 1")]
)
def test_wrong_input_is_refused(tmp_path: Path, content: bytes | None, fact: str) -> None:
    path = tmp_path / "input.jsonl"
    if content is not None:
        path.write_bytes(content)
    result = invoke("check", path)
    assert result.exit_code == 2
    assert fact in result.output
