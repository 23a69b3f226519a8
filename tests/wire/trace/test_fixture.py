"""Fixtures: named fields where they say all of a frame, hex where not; what was edited wrongly is named."""

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import DataAppended, Hello, KeepAlive, ReadSegment, encode
from segstore.wire.trace import (
    FixtureError,
    FixtureHeader,
    Record,
    RecordKind,
    TraceVersionError,
    event_data,
    from_line,
    header_from_line,
    is_fixture,
    read_lines,
    to_line,
    write_lines,
)
from segstore.wire.trace.fixture import header_line
from tests.looped import looped
from tests.wire.trace.traces import METADATA, capture, frame, record, records

HEADER = FixtureHeader(METADATA, 1000)
READ = ReadSegment("scope/stream/0", 5, 6, "", 9)


def written(each: Record) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(to_line(each, 1000))
    return line


def read(**line: Any) -> Record:
    return from_line(json.dumps({"at_ns": 0, "conn": 1, "dir": "request", **line}), HEADER, 7)


@given(records(), st.integers(-(1 << 63), (1 << 63) - 1))
def test_every_record_comes_back_byte_for_byte(each: Record, start_ns: int) -> None:
    line = to_line(each, start_ns)
    assert line.isascii()
    assert "\n" not in line
    assert from_line(line, FixtureHeader(METADATA, start_ns), 2) == each


@given(st.lists(records(), max_size=5))
def test_a_whole_fixture_comes_back(drawn: list[Record]) -> None:
    lines = list(write_lines(METADATA, drawn))
    header, *found = read_lines(lines)
    assert found == drawn
    assert header == FixtureHeader(METADATA, drawn[0].ts_ns if drawn else 0)


def test_a_frame_is_written_by_its_fields() -> None:
    assert written(record(READ, at=1500, connection=3)) == {
        "at_ns": 500,
        "conn": 3,
        "dir": "request",
        "type": "READ_SEGMENT",
        "fields": READ.to_dict(),
    }


def test_a_frame_can_be_written_by_hand() -> None:
    found = read(type="HELLO", fields={"high_version": 17, "low_version": 5})
    assert found == record(Hello(17, 5), at=1000)
    assert read(type="KEEP_ALIVE") == record(KeepAlive(), at=1000)


SHORT = frame(7, encode(DataAppended(1, uuid.UUID(int=1), 5, 4, 3))[8:-8])


@looped(
    ("data", "note"),
    [
        (SHORT, "DATA_APPENDED in a form that is not written any more"),
        (frame(100, b"more"), "KEEP_ALIVE in a form that is not written any more"),
        (frame(9, b"ab"), "READ_SEGMENT.segment at byte 8"),
        (frame(111), "no command has the type code 111"),
        (frame(0), "no command has the type code 0"),
        (b"abc", "a header has 8 bytes"),
        (frame(100)[:7] + b"\x05", "the header announces 5 bytes"),
    ],
)
def test_a_frame_that_its_fields_do_not_say_keeps_its_hex(data: bytes, note: str) -> None:
    line = written(record(data))
    assert line["hex"] == data.hex()
    assert note in line["note"]
    assert not {"type", "fields"} & line.keys()


def test_a_note_never_has_the_token_of_a_malformed_frame() -> None:
    data = encode(ReadSegment("s", 5, 6, "secret", 9))
    changed = data.replace(b"secret", b"secre\xff")
    assert "secre" not in written(record(changed))["note"]


def test_what_is_no_frame_and_what_happens_to_connections_have_lines_of_their_own() -> None:
    assert written(record(b"ab", kind=RecordKind.BYTES))["bytes"] == "6162"
    facts = event_data(peer="127.0.0.1:1")
    assert written(record(facts, at=1000, kind=RecordKind.OPEN)) == {
        "at_ns": 0,
        "conn": 1,
        "open": {"peer": "127.0.0.1:1"},
    }
    line = written(record(b"not JSON", reply=True, kind=RecordKind.CLOSE))
    assert (line["close"], line["dir"]) == (b"not JSON".hex(), "reply")


WRONG: list[tuple[dict[str, Any], str | None, str]] = [
    ({"type": "READ_SEGMENT", "fields": {**READ.to_dict(), "offset": "5"}}, "fields.offset", "an int is needed"),
    ({"type": "READ_SEGMENT", "fields": {**READ.to_dict(), "offset": 1 << 63}}, "fields.offset", "outside"),
    ({"type": "READ_SEGMENT", "fields": {**READ.to_dict(), "ofset": 5}}, "fields.ofset", "no such field"),
    ({"type": "READ_SEGMENT", "fields": {"offset": 5}}, "fields.segment", "missing"),
    ({"type": "READ_SEGMENT", "fields": {**READ.to_dict(), "segment": "x" * 70000}}, "fields.segment", "READ_SEGMENT"),
    ({"type": "READ_SEGMENT", "fields": []}, "fields", "an object is needed"),
    ({"type": "READSEGMENT"}, "type", "no command is called"),
    ({"type": 5}, "type", "a text is needed"),
    ({"hex": "0"}, "hex", "not hex"),
    ({"bytes": "zz"}, "bytes", "not hex"),
    ({"open": []}, "open", "an object is needed"),
    ({"close": "0"}, "close", "not hex"),
    ({"hex": "00", "bytes": "00"}, None, "exactly one of"),
    ({}, None, "exactly one of"),
    ({"hex": "00", "fields": {}}, "fields", "no such key here"),
    ({"hex": "00", "comment": ""}, "comment", "no such key"),
    ({"hex": "00", "dir": "in"}, "dir", "neither request nor reply"),
    ({"hex": "00", "dir": None}, "dir", "a text is needed"),
    ({"hex": "00", "conn": True}, "conn", "a whole number is needed"),
    ({"hex": "00", "conn": 1 << 63}, "conn", "64 bits"),
    ({"hex": "00", "at_ns": (1 << 63) - 1}, "at_ns", "64 bits"),
    ({"rpc": "createScope", "call": 1, "conn": 7}, "conn", "calls are on connection 0"),
    ({"rpc": "createScope", "call": 1, "conn": 0, "status": "OK"}, "status", "a request has no status"),
    ({"rpc": "createScope", "call": 1, "conn": 0, "dir": "reply", "status": "OKAY"}, "status", "not 'OKAY'"),
    ({"rpc": "createScope", "call": 1, "conn": 0, "dir": "reply"}, "status", "an answer has one of OK, CANCELLED, "),
]


@looped(("line", "field", "said"), WRONG)
def test_an_invalid_edit_is_refused_with_line_and_field(line: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(FixtureError, match=said) as caught:
        read(**line)
    assert (caught.value.line, caught.value.field) == (7, field)
    assert str(caught.value).startswith(f"line 7: {field or ''}")


@looped(
    ("line", "said"),
    [
        ("{", "not JSON at column 2"),
        ("[]", "an object is needed"),
        ("[" * 100_000, "not JSON"),
        ('{"conn": 1, "dir": "request", "hex": "00"}', "at_ns: the key is missing"),
        ('{"at_ns": 0, "conn": 1, "hex": "00"}', "dir: the key is missing"),
        ('{"at_ns": 0, "at_ns": 1, "conn": 1, "dir": "reply", "hex": ""}', "at_ns: the key appears twice"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: str, said: str) -> None:
    with pytest.raises(FixtureError, match=f"line 7: {said}"):
        from_line(line, HEADER, 7)


def test_the_line_of_an_error_counts_empty_lines() -> None:
    lines = [header_line(HEADER), "\n", to_line(record(READ), 1000), "", "broken"]
    with pytest.raises(FixtureError) as caught:
        list(read_lines(lines))
    assert caught.value.line == 5


@looped(
    ("line", "field", "said"),
    [
        ("{}", None, "the first line of a fixture"),
        ('{"segstore_trace": "1"}', None, "the first line of a fixture"),
        ('{"segstore_trace": 2, "x": 1}', "x", "no such key"),
        ('{"segstore_trace": 2, "start_ns": 0.5}', "start_ns", "a whole number is needed"),
        ('{"segstore_trace": 2, "values": {"a": 1}}', "values.a", "a text is needed"),
    ],
)
def test_an_invalid_first_line_is_refused(line: str, field: str | None, said: str) -> None:
    with pytest.raises(FixtureError, match=said) as caught:
        header_from_line(line)
    assert (caught.value.line, caught.value.field) == (1, field)


def test_an_empty_fixture_is_refused() -> None:
    with pytest.raises(FixtureError, match="empty"):
        list(read_lines(["", "\n"]))


@looped("version", [0, 1, 3])
def test_another_version_is_refused(version: int) -> None:
    with pytest.raises(TraceVersionError) as caught:
        header_from_line(json.dumps({"segstore_trace": version}))
    assert (caught.value.actual, caught.value.limit) == (version, 2)


@looped(
    ("head", "expected"),
    [(b'{"segstore', True), (b"\n {", True), (b"", False), (capture([])[:64], False), (b"\x93wtrace\n", False)],
)
def test_a_fixture_is_distinguished_from_a_capture_by_its_first_bytes(head: bytes, expected: bool) -> None:
    assert is_fixture(head) is expected
