"""The filter language: what it finds, and what it says of a filter that cannot be read."""

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    Command,
    ConditionalAppend,
    Event,
    Hello,
    SegmentRead,
    UpdateTableEntries,
)
from segstore.wire.commands import TableEntries, TableEntry, TableKey, TableValue
from segstore.wire.inspect import MOST_SEARCHED, Payload
from segstore.wire.trace import Exchanges, FilterError, filters, parse_filter
from segstore.wire.trace.filters import NAMES
from tests.looped import looped
from tests.wire.trace.traces import record

WRITER = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


def subject(**known: Any) -> Any:
    """A subject of which only that is known."""
    unknown = {
        "kind": "frame",
        "type_name": None,
        "code": None,
        "segments": (),
        "request_id": None,
        "writer_id": None,
        "connection": None,
        "direction": None,
        "failure": False,
        "malformed": False,
        "size": 8,
        "latency_ns": None,
        "time_ns": None,
        "call": None,
        "status": None,
        "broken": (),
    }
    return SimpleNamespace(**{**unknown, **known})


READ = subject(
    type_name="READ_SEGMENT",
    code=9,
    segments=("scope/stream/0.#epoch.1",),
    request_id=5 << 32 | 7,
    writer_id=WRITER,
    connection=3,
    direction=0,
    size=4096,
    latency_ns=5_000_000,
    time_ns=1_500_000_000,
    broken=("lost-write", "duplicate"),
)
MERGE = subject(
    segments=("a/b/0", "c/d/1.#epoch.0#transaction.00000000000000000000000000000001"),
    failure=True,
    direction=1,
    malformed=True,
)


@looped(
    "text",
    [
        *("type = READ_SEGMENT", "type == read_segment", "TYPE = ReadSegment", "type != SEGMENT_READ"),
        *("type ~ read*", "type ~ /^READ/", "type !~ *TABLE*", "kind = frame", "code = 9", "code != -9"),
        *("segment = scope/stream/0.#epoch.1", 'segment = "scope/stream/0.#epoch.1"', "segment ~ scope/*"),
        *("segment ~ 'scope/*'", r"segment ~ /epoch\.[12]$/", r"segment ~ /^scope\/stream/", "segment !~ other/*"),
        *("stream = stream", "stream = scope/stream", "stream ~ str*", "scope = scope", "flow = 5", "sequence = 7"),
        *("request_id = 21474836487", "writer = 01234567-89ab-cdef-0123-456789abcdef"),
        *("writer_id = 0123456789ABCDEF0123456789ABCDEF", "writer ~ 0123*", "connection >= 3", "direction = request"),
        *("failure = false", "not failure", "size = 4096", "size = 4KiB", "size<4.1KB", "size > 4 and size <= 1MiB"),
        *("latency >= 5ms", "latency = 5000us", "latency < 0.006s", "time > 1s", "time < 0.1min", "time >= 0"),
        *("broken = lost-write", 'broken == "Duplicate"', "broken != reordered", "broken ~ *", "broken !~ /^poll/"),
        "not (type = HELLO or size < 10B)",
        "type = HELLO or type = READ_SEGMENT and size = 4KiB",
        "not type = HELLO and not not code = 9",
        "(((code = 9)))",
        "  code\t=\n9 ",
    ],
)
def test_a_filter_finds_what_it_says(text: str) -> None:
    assert parse_filter(text)(READ) is True
    assert parse_filter(f"not ({text})")(READ) is False


@looped(
    "text",
    [
        *("type = HELLO", "type ~ segment", "kind = open", "code < 9", "segment = scope/stream", "segment ~ stream*"),
        *("segment ~ SCOPE/*", "stream = 0", "direction = reply", "failure", "malformed = true", "size > 4KiB"),
        "latency > 5ms",
        "(type = HELLO or type = READ_SEGMENT) and size < 4KiB",
        "not code = 9 and code = 9",
    ],
)
def test_a_filter_leaves_out_what_it_does_not_say(text: str) -> None:
    assert parse_filter(text)(READ) is False


@looped("name", ["type", "code", "segment", "stream", "scope", "flow", "sequence", "request_id"])
@looped("sign", ["=", "!="])
def test_what_a_frame_does_not_have_compares_with_nothing(name: str, sign: str) -> None:
    value = "HELLO" if name == "type" else "1"
    assert parse_filter(f"{name} {sign} {value}")(subject()) is False


@looped("text", ["segment ~ *", "segment !~ x", "writer ~ *", "latency > 0", "time > 0", "direction = reply"])
def test_what_a_frame_does_not_have_matches_nothing(text: str) -> None:
    assert parse_filter(text)(subject()) is False


@looped(
    ("text", "expected"),
    [
        ("segment = a/b/0", True),
        ("segment != a/b/0", False),
        ("segment != a/b/1", True),
        ("segment ~ c/*", True),
        ("segment !~ c/*", False),
        ("scope = c and scope = a", True),
        ("stream = c/d", True),
        ("failure and malformed and direction = reply", True),
    ],
)
def test_of_several_segments_one_is_enough(text: str, expected: bool) -> None:
    assert parse_filter(text)(MERGE) is expected


@looped(("quoted", "segment"), [(r'"a \"b\" \\"', 'a "b" \\'), (r"'it\'s'", "it's"), ("'\n'", "\n"), ("''", "")])
def test_quoted_values_may_hold_anything(quoted: str, segment: str) -> None:
    assert parse_filter(f"segment = {quoted}")(subject(segments=(segment,))) is True


NAMED = "'not', '(' or one of type"
WRONG = [
    ("", 1, NAMED, ""),
    ("   ", 4, NAMED, ""),
    ("failure and", 12, NAMED, ""),
    ("failure or or failure", 12, NAMED, "or"),
    ("filure", 1, "a name (failure?)", "filure"),
    ("xyz = 1", 1, NAMED, "xyz"),
    ("()", 2, NAMED, ")"),
    ("(failure", 9, "')', 'and' or 'or'", ""),
    ("failure)", 8, "'and', 'or' or the end", ")"),
    ("failure malformed", 9, "'and', 'or' or the end", "malformed"),
    ("size", 5, "one of = != < <= > >=", ""),
    ("size ~ 5", 6, "one of = != < <= > >=", "~"),
    ("failure < true", 9, "one of = !=", "<"),
    ("segment > a", 9, "one of = != ~ !~", ">"),
    ("size =", 7, "a size such as 4KiB", ""),
    ("size = )", 8, "a value", ")"),
    ("size = 4XB", 8, "a size such as 4KiB", "4XB"),
    ("size = big", 8, "a size such as 4KiB", "big"),
    ("latency > 5", 11, "a time such as 5ms", "5"),
    ("latency > 5kib", 11, "a time such as 5ms", "5kib"),
    ("code = nine", 8, "a whole number", "nine"),
    ("type = READ", 8, "a command", "READ"),
    ("type = APPNED", 8, f"a command ({filters._APPENDS})", "APPNED"),
    ("type = READ_SEGMNT", 8, "a command (READ_SEGMENT?)", "READ_SEGMNT"),
    ("status = STREAM_EXIST", 10, "a status (STREAM_EXISTS?)", "STREAM_EXIST"),
    ("status != unavailabel", 11, "a status (UNAVAILABLE?)", "unavailabel"),
    ("status = SUCCESS", 10, "a status such as OK", "SUCCESS"),
    ("broken = lost-wirte", 10, "a rule (lost-write?)", "lost-wirte"),
    ("broken = x", 10, "a rule such as lost-write", "x"),
    ("broken > duplicate", 8, "one of = != ~ !~", ">"),
    ("direction = in", 13, "request or reply", "in"),
    ("failure = maybe", 11, "true or false", "maybe"),
    ("kind = frames", 8, "frame, call, open, close or bytes", "frames"),
    ("writer = 5", 10, "a writer id such as", "5"),
    ("segment ~ /a(/", 11, "a regular expression (", "/a(/"),
    ("segment = 'a", 11, "a value", "'"),
    ("segment ~", 10, "a value", ""),
    ("segment ~ /(?=a)/", 11, "a regular expression (look-around", "/(?=a)/"),
    (r"segment ~ /(a)\1/", 11, "a regular expression (backreferences", r"/(a)\1/"),
    ("segment ~ " + "x" * 1001, 11, "a glob (it has 1001 characters", "x" * 1001),
    ("x" * 65_537, 1, "at most 65536 characters", "x" * 65_537),
    ("not " * 200 + "failure", 405, "at most 100 levels", "not"),
    ("(" * 5000, 102, "at most 100 levels", "("),
]


@looped(("text", "column", "expected", "found"), WRONG)
def test_an_error_names_the_column_and_what_was_expected(text: str, column: int, expected: str, found: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    error = caught.value
    assert (error.column, error.found) == (column, found)
    assert error.expected.startswith(expected)
    assert str(error).startswith(f"column {column}: expected {expected}")
    assert len(str(error)) < 600
    if len(found) < 90:
        assert str(error).endswith(repr(found) if found else "the end")


_WORDS = st.sampled_from(
    (*NAMES, "and", "or", "not", "(", ")", "=", "!=", "~", "<", "1", "5ms", "4KiB", "/a", "/b/", "'", '"', "\\")
)


@given(st.one_of(st.text(max_size=30), st.lists(_WORDS, max_size=12).map(" ".join)))
def test_any_text_is_a_filter_or_an_error_with_a_place(text: str) -> None:
    try:
        found = parse_filter(text)
    except FilterError as error:
        column = error.column
    else:
        column = 1
        assert found(READ) in (True, False)
        assert found.names <= set(NAMES)
    assert 1 <= column <= len(text) + 1


def test_a_filter_says_what_it_looks_at() -> None:
    found = parse_filter("writer = 01234567-89ab-cdef-0123-456789abcdef and (size > 1 or not failure)")
    assert found.names == {"writer_id", "size", "failure"}
    assert repr(found) == f"parse_filter({found.text!r})"


def test_a_word_that_is_no_type_suggests_what_it_means() -> None:
    appends = "APPEND_BLOCK_END, or CONDITIONAL_APPEND"
    words = {"APPEND": appends, "APPNED": appends, "write": appends, "TXN": "rpc = commitTransaction"}
    words["READ"] = "(READ_SEGMENT, READ_TABLE, "
    for word, suggested in (words | {"DATA_APENDED": "(DATA_APPENDED?)"}).items():
        with pytest.raises(FilterError) as caught:
            parse_filter(f"type = {word}")
        assert suggested in caught.value.expected


W = uuid.UUID(int=1)
ORDER = b'{"order": 17, "city": "Oslo", "items": ["tea", "milk"], "paid": true, "note": null, "big": 1e400}'
TEXT = "my order 17 for Zoë".encode()


def framed(*events: bytes) -> bytes:
    return b"".join(len(event).to_bytes(8, "big") + event for event in events)


@looped(
    ("text", "matches"),
    [
        ('data ~ "order 17"', True),
        ("data ~ Zoë and data ~ 'for*Zo?' and data ~ /order \\d+/", True),
        ("data ~ 0x6f7264 and data !~ 0xff00 and data ~ 0X6F", True),
        ("data = 'order 17' or data = 0x6d79", False),
        ('data = "my order 17 for Zoë" and data[0] = "my order 17 for Zoë" and not data[1] ~ my', True),
        ('data ~ \'["tea", "milk"]\' and data[1].items[1] = milk', True),
        (
            "data.order = 17 and data.order == 17.0 and data.order > 16.5 and data.order <= 17 and data.big > 1e300",
            True,
        ),
        ("data.city = Oslo and data.city ~ sl and data.city ~ /^O/ and data.city !~ Rome", True),
        ("data.paid = true and data.note = null", True),
        ("data.nope != Rome or data.city.name != Rome or data.items != tea or data[2] != x", False),
        ("data.city = oslo or data.order = 18 or data.items[2] = milk or data.city > 1", False),
    ],
)
def test_a_filter_finds_what_a_payload_has(text: str, matches: bool) -> None:
    assert parse_filter(text)(SimpleNamespace(payloads=(TEXT, ORDER))) is matches


def test_a_comparison_of_payloads_that_cannot_hold_is_refused_with_its_column() -> None:
    for text, column in (
        ("data > 3", 6),
        ("data.city > x", 13),
        ("data = 0xabc", 8),
        ("size > 1 and data.", 14),
        ("data", 5),
    ):
        with pytest.raises(FilterError) as caught:
            parse_filter(text)
        assert caught.value.column == column, text


def test_payloads_are_events_keys_and_values() -> None:
    entry, removed = TableEntry(TableKey(b"key"), TableValue(b"value")), TableEntry(TableKey(b"k"), TableValue(b""))
    commands: tuple[tuple[Command, tuple[bytes, ...]], ...] = (
        (AppendBlockEnd(W, 0, framed(b"one", b"two"), 2, 2, 1), (b"one", b"two")),
        (ConditionalAppend(W, 1, 0, Event(b"one"), 1), (b"one",)),
        (SegmentRead("s/t/0", 0, False, False, framed(b"one", b"cut")[:-1], 1), (b"one", b"cu")),
        (SegmentRead("s/t/0", 0, False, False, framed(b"", b"one", b"", b"cut")[:-3], 1), (b"", b"one", b"")),
        (ConditionalAppend(W, 1, 0, Event(b""), 1), (b"",)),
        (SegmentRead("s/t/0", 0, False, False, b"no events", 1), (b"no events",)),
        (UpdateTableEntries(1, "s/t", "", TableEntries((removed, entry)), -1), (b"k", b"", b"key", b"value")),
        (Hello(17, 5), ()),
    )
    for command, payloads in commands:
        assert Payload(command).parts() == payloads, command
    assert Payload(SegmentRead("s/t/0", 0, False, False, bytes(MOST_SEARCHED + 1), 1)).size == MOST_SEARCHED


def test_the_end_of_an_append_has_the_events_of_its_block_and_the_one_that_it_completes() -> None:
    whole, last = framed(b"one", b"two"), framed(b"three")
    partial = b"\xff\xff\xff\xfe\0\0\0\x0a" + last[:10]
    for block, tail, events in (
        (whole, b"", (b"one", b"two")),
        (whole + b"\xff\xff\xff\xff\0\0\0\0", b"", (b"one", b"two")),
        (whole + partial, last[10:], (b"one", b"two", b"three")),
        (b"one", b"", (b"one",)),
    ):
        exchanges = Exchanges()
        size = min(len(block), len(whole))
        exchanges.see(record(AppendBlock(W, block)))
        assert exchanges.see(record(AppendBlockEnd(W, size, tail, 1, 1, 1))).payloads == events
        assert exchanges.see(record(AppendBlockEnd(W, 0, framed(b"alone"), 1, 2, 1))).payloads == (b"alone",)
