"""`segstore trace`: what is printed, what is written, what is said of bad input."""

import asyncio
import base64
import gzip
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import Result

from segstore.client import connect
from segstore.server.replay import read_script
from segstore.testing import ServerThread
from segstore.traces import TraceFile
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    Hello,
    NoSuchSegment,
    ReadSegment,
    SealSegment,
    SegmentRead,
    SetupAppend,
    decode,
)
from segstore.wire.trace import Direction, Record, RecordKind, event_data
from tests.processes import PATIENCE_S, invoke
from tests.test_check import FIXTURES, with_loose_bytes
from tests.wire.trace.traces import capture, frame, record

MS = 1_000_000
DIALOGUE = [
    Record(0, 1, Direction.REQUEST, RecordKind.OPEN, event_data(peer="127.0.0.1:4711")),
    record(Hello(17, 5), at=1 * MS),
    record(Hello(17, 5), at=2 * MS, reply=True),
    record(ReadSegment("scope/stream/0", 0, 100, "secret", 7), at=3 * MS),
    record(SegmentRead("scope/stream/0", 0, False, True, b"data", 7), at=5 * MS, reply=True),
    record(SealSegment(8, "scope/other/0", "secret"), at=6 * MS),
    record(NoSuchSegment(8, "scope/other/0", "", -1), at=16 * MS, reply=True),
    record(frame(9, b"ab"), at=17 * MS),
    record(SealSegment(9, "scope/other/0", "secret"), at=18 * MS),
    record(b"\0\0", at=19 * MS, kind=RecordKind.BYTES),
    Record(20 * MS, 1, Direction.REPLY, RecordKind.CLOSE, event_data(reason="it broke the protocol")),
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "a.wtrace"
    path.write_bytes(capture(DIALOGUE))
    return path


def run(*arguments: object, status: int = 0) -> Result:
    result = invoke("trace", *arguments)
    assert result.exit_code == status, result.output
    return result


def test_show_prints_a_line_for_each_record(trace: Path) -> None:
    lines = run("show", trace).stdout.splitlines()
    assert len(lines) == len(DIALOGUE)
    assert lines[0] == '    0.000000  #1 > opened peer="127.0.0.1:4711"'
    assert lines[1] == "    0.001000  #1 > HELLO high_version=17 low_version=5"
    assert lines[2].endswith("#1 < HELLO high_version=17 low_version=5  after 1 ms")
    assert lines[4].endswith("after 2 ms")
    assert "READ_SEGMENT, 10 bytes, malformed: READ_SEGMENT.segment at byte 8" in lines[7]
    assert lines[9].endswith("#1 > 2 bytes that are not a frame")
    assert lines[10].endswith('#1 < closed by the store reason="it broke the protocol"')


def test_show_prints_what_a_filter_chooses(trace: Path) -> None:
    request, reply = run("show", trace, "-f", "failure and latency >= 10ms and scope = scope").stdout.splitlines()
    assert ("SEAL_SEGMENT" in request, "NO_SUCH_SEGMENT" in reply) == (True, True)
    assert request.endswith("after 10 ms")
    assert run("show", trace, "--filter", "size > 1GiB").stdout == ""


def test_verdicts_are_found_by_the_rule_that_is_broken(tmp_path: Path) -> None:
    judged, part = with_loose_bytes(tmp_path / "a.wtrace"), tmp_path / "part.jsonl"
    right = FIXTURES / "write.jsonl"
    for text in ("broken = frames-only", "broken ~ '*'", "broken ~ frames* and not failure"):
        (line,) = run("show", judged, "-f", text).stdout.splitlines()
        assert line.endswith("8 bytes that are not a frame")
        assert "(no frame)" in run("stats", judged, "-f", text).stdout
        assert run("filter", judged, part, "--only", "-f", text).stdout == "1 records\n"
        assert run("show", right, "-f", text).stdout == ""
    assert run("show", judged, "-f", "broken = duplicate or broken != frames-only").stdout == ""
    assert "(frames-only?)" in run("show", judged, "-f", "broken = frame-only", status=2).stderr
    assert "only a complete trace is judged" in run("show", "--follow", judged, "-f", "broken ~ *", status=2).stderr


@pytest.mark.parametrize("form", [(), ("--json",), ("--hex",)])
def test_show_prints_tokens_only_on_request(trace: Path, form: tuple[str, ...]) -> None:
    assert "secret" not in run("show", trace, *form).stdout
    if form == ("--json",):
        assert "secret" in run("show", trace, *form, "--show-tokens").stdout
    if form == ("--hex",):
        assert '"secret"' in run("show", trace, *form, "--show-tokens").stdout


def test_show_prints_the_lines_of_a_fixture_as_json(trace: Path, tmp_path: Path) -> None:
    run("convert", trace, tmp_path / "b.jsonl")
    shown = run("show", trace, "--json", "--show-tokens").stdout.splitlines()
    assert shown == (tmp_path / "b.jsonl").read_text().splitlines()[1:]
    assert json.loads(run("show", trace, "--json", "-f", "failure and direction = reply").stdout)["at_ns"] == 16 * MS


def test_stats_counts(trace: Path) -> None:
    shown = run("stats", trace).stdout
    assert "capture of" in shown
    assert "recorded by test, wire version 17" in shown
    assert "why: tests" in shown
    assert "1 connections, 0 of them open at the end, 0.020 s" in shown
    assert "without a reply: SEAL_SEGMENT 1" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["request", "READ_SEGMENT", "2", str(len(DIALOGUE[3].data) + 10), "1"] in rows
    assert ["reply", "NO_SUCH_SEGMENT", "1", str(len(DIALOGUE[6].data)), "1"] in rows
    assert ["READ_SEGMENT", "1", "2", "ms", "2", "ms", "2", "ms"] in rows


def test_stats_are_also_json(trace: Path) -> None:
    found = json.loads(run("stats", trace, "--json").stdout)
    assert (found["form"], found["wire_version"], found["connections"], found["damages"]) == ("capture", 17, 1, [])
    assert found["unanswered"] == {"SEAL_SEGMENT": 1}
    latencies = {each["command"]: each for each in found["latencies"]}
    times = dict.fromkeys(("p50_ns", "p99_ns", "max_ns"), 10 * MS)
    assert latencies["SEAL_SEGMENT"] == {"command": "SEAL_SEGMENT", "answered": 1, **times}
    hello = next(each for each in found["traffic"] if (each["direction"], each["command"]) == ("reply", "HELLO"))
    assert (hello["frames"], hello["size"]) == (1, 16)


def test_stats_count_a_read_that_its_client_gave_up_apart(tmp_path: Path) -> None:
    close = Record(2 * MS, 1, Direction.REQUEST, RecordKind.CLOSE, b"{}")
    (tmp_path / "a.wtrace").write_bytes(capture([record(ReadSegment("a/b/0", 0, 100, "", 7)), close]))
    assert "given up by the client, waiting for data: READ_SEGMENT 1" in run("stats", tmp_path / "a.wtrace").stdout
    found = json.loads(run("stats", tmp_path / "a.wtrace", "--json").stdout)
    assert (found["unanswered"], found["given_up"]) == ({}, {"READ_SEGMENT": 1})


def test_traces_are_read_from_pipes_in_every_form(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    commands = (
        ["trace", "show", "PIPE"],
        ["trace", "stats", "PIPE"],
        ["trace", "diff", "PIPE", str(trace)],
        ["trace", "filter", "PIPE", str(out), "-f", "type = HELLO"],
        ["trace", "convert", "PIPE", str(out)],
        ["trace", "view", "PIPE", "-o", str(tmp_path / "page.html")],
        ["explore", "PIPE", "-f", "type = NONE"],
        ["send", "PIPE", "--to", "127.0.0.1:1"],
    )
    whole = [trace, tmp_path / "b.jsonl", tmp_path / "b.pcapng"]
    for path in whole[1:]:
        run("convert", trace, path)
    for path in whole:
        for command in commands:
            reading, writing = os.pipe()
            os.write(writing, path.read_bytes())
            os.close(writing)
            named, piped = (
                invoke(*(name if part == "PIPE" else part for part in command))
                for name in (str(path), f"/dev/fd/{reading}")
            )
            os.close(reading)
            assert piped.exit_code == named.exit_code, (path, command, piped.output)
            shown, said = (
                [line for line in each.output.splitlines() if "bytes" not in line] for each in (named, piped)
            )
            assert said == shown, (path, command)
    command = [sys.executable, "-m", "segstore", "trace", "stats", "-"]
    done = subprocess.run(command, input=whole[1].read_bytes(), capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.decode() == run("stats", whole[1]).stdout
    refused = invoke("trace", "index", "-")
    assert (refused.exit_code, "an index is written beside a file" in refused.output) == (2, True)


def test_convert_there_and_back_changes_nothing(trace: Path, tmp_path: Path) -> None:
    fixture, back, again = tmp_path / "b.jsonl", tmp_path / "c.wtrace", tmp_path / "d.jsonl"
    assert run("convert", trace, fixture).stdout == f"{len(DIALOGUE)} records\n"
    run("convert", fixture, back, "--compress")
    run("convert", back, again)
    assert fixture.read_bytes() == again.read_bytes()
    assert run("diff", trace, again).output == ""


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
@pytest.mark.parametrize(
    "command",
    [
        ("convert", "{trace}", "{output}", "--redact"),
        ("filter", "{trace}", "{output}", "-f", "type = HELLO"),
        ("view", "{trace}", "-o", "{output}"),
        ("view", "{other}", "{trace}", "-o", "{output}"),
        ("view", "{other}", "--against", "{trace}", "-o", "{output}"),
    ],
)
def test_an_output_that_is_an_input_is_refused(
    trace: Path, tmp_path: Path, link: Callable[[Path, Path], None] | None, command: tuple[str, ...]
) -> None:
    before, output, other = trace.read_bytes(), trace, tmp_path / "other.jsonl"
    run("convert", trace, other)
    if link is not None:
        output = tmp_path / "b.wtrace"
        link(output, trace)
    result = run(*(each.format(trace=trace, output=output, other=other) for each in command), status=2)
    assert f"{output}: the output is the same file as the input {trace}" in result.stderr
    assert trace.read_bytes() == before


@pytest.mark.parametrize("suffix", [".wtrace", ".jsonl", ".pcapng"])
def test_a_page_is_not_written_over_a_trace(trace: Path, tmp_path: Path, suffix: str) -> None:
    named, other = tmp_path / f"named{suffix}", tmp_path / "other"
    run("convert", trace, named)
    before = named.read_bytes()
    for output in (named, named.rename(other)):
        result = run("view", trace, "-o", output, status=2)
        assert f"{output} is a trace: -o names the HTML file to write" in result.stderr
    assert other.read_bytes() == before
    other.write_text('{"name": "no trace"}')
    run("view", trace, "-o", other)


def test_convert_redacts_on_request(trace: Path, tmp_path: Path) -> None:
    run("convert", trace, tmp_path / "b.jsonl", "--redact")
    assert "secret" not in (tmp_path / "b.jsonl").read_text()
    assert '"delegation_token": "******"' in (tmp_path / "b.jsonl").read_text()
    shown = run("diff", trace, tmp_path / "b.jsonl", status=1).stdout
    assert "delegation_token: the tokens differ" in shown
    assert "secret" not in shown
    assert "secret" in run("diff", trace, tmp_path / "b.jsonl", "--show-tokens", status=1).stdout


def test_filter_keeps_hello_start_and_end_of_connections_with_a_match(tmp_path: Path) -> None:
    # The same number again, and another connection beside it, of which nothing fits.
    again = [each._replace(ts_ns=each.ts_ns + 100 * MS) for each in DIALOGUE if each.data != DIALOGUE[3].data]
    other = [each._replace(connection=2) for each in DIALOGUE[:3]]
    path, target = tmp_path / "a.wtrace", tmp_path / "b.jsonl"
    path.write_bytes(capture([DIALOGUE[0], other[0], *other[1:], *DIALOGUE[1:], *again]))
    assert run("filter", path, target, "-f", "type = READ_SEGMENT and not malformed").stdout == "5 records\n"
    lines = run("show", target).stdout.splitlines()
    assert [line.split()[3] for line in lines] == ["opened", "HELLO", "HELLO", "READ_SEGMENT", "closed"]
    assert {line.split()[1] for line in lines} == {"#1"}
    assert run("filter", path, target, "-f", "size > 1MB").stdout == "0 records\n"


def appends(writer: int, *numbers: int) -> list[Record]:
    """The set-up of a writer, and its appends as blocks with their ends."""
    name, segment = UUID(int=writer), f"s/t/{writer}"
    found = [record(SetupAppend(1, name, segment, "")), record(AppendSetup(1, segment, name, 0), reply=True)]
    for number in numbers:
        event = bytes(4) + struct.pack(">i", 3) + b"tea"
        found += [record(AppendBlock(name, event)), record(AppendBlockEnd(name, len(event), b"", 1, number, number))]
        found.append(record(DataAppended(number, name, number, number - 1, number * 11), reply=True))
    return found


def test_filtered_appends_keep_their_blocks_and_set_ups_and_can_be_replayed(tmp_path: Path) -> None:
    hellos = [record(Hello(17, 5)), record(Hello(17, 5), reply=True)]
    other = record(SealSegment(8, "s/t/8", ""))
    records = [*hellos, other, *appends(1, 1, 2), *appends(2, 1), *(hello._replace(connection=2) for hello in hellos)]
    path, target = tmp_path / "a.wtrace", tmp_path / "b.jsonl"
    path.write_bytes(capture([*records, *(append._replace(connection=2) for append in appends(1, 3))]))

    def kept(chosen: str, *options: str) -> list[str]:
        run("filter", path, target, "-f", chosen, *options)
        with TraceFile(target) as opened:
            found = list(opened.records())
        left_out: list[str] = []
        steps = read_script(found, left_out)
        assert "--only" in options or left_out == []
        assert "--with-replies" not in options or all(step.replies for step in steps)
        return [f"{each.connection} {decode(each.data).type_name}" for each in found]

    greeting, begun = ["HELLO", "HELLO"], ["SETUP_APPEND", "APPEND_SETUP"]
    block, answer = ["APPEND_BLOCK", "APPEND_BLOCK_END"], ["DATA_APPENDED"]
    last = [f"2 {name}" for name in (*greeting, *begun, *block)]
    every = [*greeting, *begun, *(2 * [*block, *answer]), *begun, *block, *answer]
    ends = "type = APPEND_BLOCK_END"
    assert kept(ends, "--with-replies") == [*(f"1 {name}" for name in every), *last, "2 DATA_APPENDED"]
    assert kept(f"{ends} and request_id = 3") == last
    assert kept("type = APPEND_BLOCK and connection = 2") == last
    assert kept("type = SEAL_SEGMENT") == [f"1 {name}" for name in (*greeting, "SEAL_SEGMENT")]
    assert kept(ends, "--only") == ["1 APPEND_BLOCK_END"] * 3 + ["2 APPEND_BLOCK_END"]


def two_runs(tmp_path: Path) -> tuple[Path, Path]:
    """Traces whose ids differ, and an offset."""
    for name, writer, offset in (("a", 1, 5), ("b", 2, 6)):
        requests = [SetupAppend(writer, UUID(int=writer), "s/t/0", ""), ReadSegment("s/t/0", offset, 9, "", 1)]
        (tmp_path / f"{name}.wtrace").write_bytes(capture([record(request) for request in requests]))
    return tmp_path / "a.wtrace", tmp_path / "b.wtrace"


def test_diff_of_two_runs_ignores_ids_and_what_it_is_told_to(tmp_path: Path) -> None:
    traces = two_runs(tmp_path)
    assert "  offset: 5 in A, 6 in B" in run("diff", *traces, status=1).stdout.splitlines()
    assert run("diff", *traces, "--ignore", "offset").stdout == ""
    assert "writer_id" in run("diff", *traces, "--exact", status=1).stdout
    assert (
        "no command or call has a field 'ofset' (offset?)" in run("diff", *traces, "--ignore", "ofset", status=2).stderr
    )


async def _a_program(uri: str) -> None:
    async with connect(uri) as pravega:
        await pravega.controller.create_scope("shop")
        await pravega.controller.create_stream("shop", "orders", segments=2)
        async with pravega.event_writer("shop", "orders") as writer:
            for number in range(6):
                await writer.write(b"order %d" % number, routing_key=f"table {number}")
        async with pravega.transaction_writer("shop", "orders") as transactions, transactions.begin() as transaction:
            await transaction.write(b"the last", routing_key="table 1")
        async with pravega.event_reader("shop", "orders", from_="head") as events:
            found = [(await anext(events)).data for _ in range(7)]
    assert b"the last" in found


def test_a_page_of_two_runs_shows_the_differences_that_diff_prints(tmp_path: Path) -> None:
    paths, page = two_runs(tmp_path), tmp_path / "page.html"

    def fields(*options: str) -> set[str]:
        run("view", paths[0], "--against", paths[1], "-o", page, *options)
        found = re.search('id="differences">([^<]*)<', page.read_text("utf-8"))
        differences = json.loads(zlib.decompress(base64.b64decode(found[1]), -zlib.MAX_WBITS))
        return {field["field"] for difference in differences for field in difference["fields"]}

    assert fields() == {"offset"}
    assert fields("--ignore", "offset") == set()
    assert "writer_id" in fields("--exact")
    refused = run("view", paths[0], "-o", page, "--against", paths[1], "--ignore", "segmnet", status=2)
    assert "no command or call has a field 'segmnet' (segment?)" in refused.stderr


def test_diff_finds_no_difference_between_two_runs_of_one_program(tmp_path: Path) -> None:
    paths = [tmp_path / "a.wtrace", tmp_path / "b.jsonl"]
    with ServerThread() as thread:
        for path in paths:
            server = thread.serve(record=path)
            asyncio.run(_a_program(f"tcp://{server.controller_uri}"))
            server.stop()
    assert run("diff", *paths).output == ""
    assert "writer_id" in run("diff", *paths, "--exact", status=1).output


def test_diff_names_fields_and_shows_both_sides(trace: Path, tmp_path: Path) -> None:
    changed = list(DIALOGUE)
    changed[3] = record(ReadSegment("scope/stream/0", 64, 100, "secret", 7))
    (tmp_path / "b.wtrace").write_bytes(capture(changed[:-3]))
    lines = run("diff", trace, tmp_path / "b.wtrace", status=1).stdout.splitlines()
    more = "  A has one more SEAL_SEGMENT, one more BYTES"
    assert lines[:3] == ["connection #1, request 2:", more, "  offset: 0 in A, 64 in B"]
    assert lines[3].startswith("  A: ")
    assert any("00 00 00 00 00 00 00 40" in line and "offset" in line for line in lines)
    (tmp_path / "b.wtrace").write_bytes(capture(DIALOGUE[:-3]))
    assert f"{more}\n" in run("diff", trace, tmp_path / "b.wtrace", status=1).stdout


def test_what_readers_of_packets_do_not_find_is_said_on_writing_and_on_reading(
    trace: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packets = tmp_path / "b.pcapng"
    assert run("filter", trace, packets, "--only", "-f", "type = READ_SEGMENT").stdout == "2 records\n"
    (warning,) = caplog.messages
    assert warning.startswith("connections without a Hello")
    result = run("show", packets)
    assert result.stdout == ""
    assert result.stderr == f"{packets}: no connection in it starts with a Hello, and others are not read\n"
    run("convert", trace, packets)
    assert run("show", packets).stderr == ""
    assert caplog.messages == [warning]


def test_a_torn_trace_is_used_and_reported(trace: Path, tmp_path: Path) -> None:
    data = trace.read_bytes()
    trace.write_bytes(data[:-10])
    result = run("show", trace, status=1)
    assert len(result.stdout.splitlines()) == 9
    assert f"{trace}: the last block is torn: " in result.stderr
    assert "are lost" in result.stderr
    result = run("convert", trace, tmp_path / "b.jsonl", status=1)
    assert "9 records" in result.stdout
    assert "torn" in result.stderr
    assert json.loads(run("stats", trace, "--json", status=1).stdout)["damages"][0]["torn"] is True


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GIF89a", "this is no capture: there is no block in it"),
        (gzip.compress(b"x" * 100, mtime=0), "this file is compressed: decompress it with gzip -d"),
        (bytes.fromhex("28b52ffd") + b"x" * 100, "this file is compressed: decompress it with zstd -d"),
        (b'{"segstore_trace": 9}\n', "the fixture has version 9; this release reads version 2"),
        (
            b'{"segstore_trace": 2}\n{"at_ns": 0, "conn": 1, "dir": "reply", "type": "HELLO", "fields": {}}',
            "line 2: fields.high_version: HELLO: the field is missing",
        ),
        (b"{", "line 1: not JSON at column 2"),
        (b"", "the file is empty\n"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    assert f"{path}: {said}" in run("show", path, status=1).stderr


def test_view_writes_a_page_and_reports_damage(trace: Path, tmp_path: Path) -> None:
    page, damaged = tmp_path / "page.html", tmp_path / "damaged.wtrace"
    size = f"{run('view', trace, '-o', page).stdout}".removeprefix(f"{page}: ").removesuffix(" bytes\n")
    assert int(size.replace(",", "")) == page.stat().st_size
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    damaged.write_bytes(trace.read_bytes()[:-10])
    result = run("view", trace, "--against", damaged, "-o", page, status=1)
    assert f"{damaged}: the last block is torn" in result.stderr
    assert 'id="differences"' in page.read_text("utf-8")


def test_view_names_what_is_wrong(trace: Path, tmp_path: Path) -> None:
    page, broken = tmp_path / "page.html", tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    assert f"{broken}: line 1" in run("view", trace, broken, "-o", page, status=1).stderr
    assert not page.exists()
    assert "compares one trace" in run("view", trace, trace, "--against", trace, "-o", page, status=2).stderr
    missing = tmp_path / "no" / "page.html"
    assert run("view", trace, "-o", missing, status=1).stderr == f"segstore: {missing}: No such file or directory\n"


def test_a_filter_that_cannot_be_read_is_a_wrong_option(trace: Path) -> None:
    said = run("show", trace, "-f", "type = READ", status=2).stderr
    assert "column 8: expected a command" in said


def test_a_name_without_a_form_is_a_wrong_option(trace: Path, tmp_path: Path) -> None:
    assert "ends in .wtrace" in run("convert", trace, tmp_path / "b.bin", status=2).stderr


def test_show_follows_a_capture_until_it_is_interrupted(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    followed = run("show", "--follow", trace, "-f", "type = SEAL_SEGMENT")
    assert followed.output == run("show", trace, "-f", "type = SEAL_SEGMENT").output
    assert "SEAL_SEGMENT" in followed.output


def test_following_ends_when_the_reader_of_the_output_has_gone(trace: Path) -> None:
    command = (sys.executable, "-m", "segstore", "trace", "show", "--follow", str(trace))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        for _ in run("show", trace).stdout.splitlines():
            assert following.stdout.readline()
        following.stdout.close()
        assert (following.wait(PATIENCE_S), following.stderr.read()) == (1, b"")


def test_a_fixture_cannot_be_followed(trace: Path, tmp_path: Path) -> None:
    run("convert", trace, tmp_path / "a.jsonl")
    assert "only a capture can be followed" in run("show", "--follow", tmp_path / "a.jsonl", status=1).stderr
