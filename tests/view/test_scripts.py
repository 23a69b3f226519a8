"""What the page's script finds is what Python finds: matches and errors of filters, and the meaning of bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from segstore.traces import followed
from segstore.wire import AppendBlock, AppendBlockEnd, Command, ConditionalAppend, Event, UpdateTableEntries, encode
from segstore.wire.commands import TableEntries, TableEntry, TableKey, TableValue
from segstore.wire.inspect import describe
from segstore.wire.trace import Direction, FilterError, Record, RecordKind, check_possible, parse_filter
from tests.browser import Chromium
from tests.view.samples import FIXTURES, all_fixtures, call, saved, shown
from tests.wire.trace.test_possible import FILTERS as OF_DOORS

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.timeout(600)]

FILTERS = (
    "failure", "not failure", "malformed", "failure = false and direction = reply", "type = READ_SEGMENT",
    "type != HELLO", "type ~ *APPEND*", "type !~ *_SEGMENT", "type ~ /^segment_/", "type ~ /(?i)hello|KEEP/",
    "code < 0",
    "code >= 7 and code <= 9", "kind = open or kind = close", "kind != frame", 'segment ~ "*/stream/*"',
    r"segment ~ /epoch\.[0-9]+$/", r"segment ~ /\d{1,2}\.#epoch/", "segment !~ *transaction*", "stream = scope/stream",
    "stream ~ s?r[a-f]*m", "stream != stream", "scope = scope", "scope ~ /^[^s]/", "flow > 0", "flow = 0",
    "sequence < 3",
    "sequence = -1", "request_id = -1", "request_id > 4294967296", "writer ~ *a*", "writer !~ /^[0-7]/",
    "connection = 3", "connection > 40 and connection <= 55", "direction = reply", "size > 100", "size <= 0.1KiB",
    "latency > 1ms", "latency <= 0.25ms", "latency != 0", "time < 500ms", "time >= 1.5s and time < 0.05min",
    "not (type = HELLO or size < 50B) and (failure or latency > 2ms)", "segment = 'a\\'b'",
    "failure or malformed or not kind=frame", "status = OK", "status != ok", "rpc = createStream and status = OK",
    "type = APPEND_BLOCK_END and latency > 1us", "direction = request and failure", "type = READ_SEGMENT and failure",
    'data ~ "e"', "data ~ /[0-9]{3}/", "data !~ e", "data = 0x00", "data ~ 0x6f6e", "data[1] ~ '*'", "data[0] != x",
    "data ~ ö or data ~ '0*1' or data[2] = 'event'", "type = SEGMENT_READ and data ~ /./", "not data ~ a",
    "data.order > 0", "data.order != 2", "data[0].city ~ /O/", "data.items[0] = tea", "data.paid = true",
    "data.city ~ s", "data.city = Oslo and data.order = 1.0", "data.none = null", "data.order <= 1e0",
    "data = ''", "data[0] = ''", "data[1] = '' and data[2] = x", "broken = LENGTH-SHRINKS", "broken ~ /^T/",
    "broken != two-owners", "broken !~ *read* and type ~ *SEGMENT*", "not broken ~ *",
)  # fmt: skip
_MATCHES = """async (filters) => {
  const trace = page.views[0].trace, found = [];
  for (const text of filters) {
    try {
      const matches = await matching(text, trace);
      found.push(Array.from(matches.keys()).filter((at) => matches[at]));
    } catch (error) {
      if (!(error instanceof FilterError)) throw error;
      found.push(error.message);
    }
  }
  return found;
}"""


def python_finds(records: list[Record], text: str) -> list[int] | str:
    try:
        holds = parse_filter(text)
    except FilterError as error:
        return str(error)
    records, exchanges = followed(records, holds)
    found = sorted(at for at, seen in exchanges.settled(records) if holds(seen))
    try:
        if not found:
            check_possible(holds, "trace")
    except ValueError as error:
        return str(error)
    return found


def odd_records() -> list[Record]:
    """Records that fixtures lack: extreme numbers, bytes that are no frames, times that go back."""
    frames = [b"", b"\0\0", bytes(8), (9).to_bytes(4, "big") + bytes(4), (777).to_bytes(4, "big") + bytes(4)]
    kinds = [(kind, data) for kind in (RecordKind.FRAME, RecordKind.BYTES) for data in frames]
    numbers = (-(2**63), -1, 0, 2**53 + 1, 2**63 - 1)
    odd = [
        Record(10**18 + (-1) ** at * 7**at, numbers[at % 5], Direction(at % 2), kind, data)
        for at, (kind, data) in enumerate(kinds)
    ]
    return odd + [Record(10**18, 5, Direction.REQUEST, RecordKind.FRAME, encode(append)) for append in appends()]


def appends() -> Iterator[Command]:
    """Appends of JSON and other events: within a block, split at its end, and in the end alone."""
    documents = [
        b'{"order": 1, "city": "Oslo", "items": ["tea"], "paid": true, "none": null}', b"\xff\xfe", "Köln".encode(),
        b'{"order": 1e400, "city": {"name": "O"}}', b'{"order": NaN}', b'\xef\xbb\xbf{"order": 3}', b"[1, [2]]",
        b'"text"',
    ]  # fmt: skip
    writer, framed = UUID(int=1), [len(document).to_bytes(8, "big") + document for document in documents]
    whole, last = b"".join(framed[:-1]), framed[-1]
    cut = (-2).to_bytes(4, "big", signed=True) + (5).to_bytes(4, "big") + last[:5]
    yield AppendBlock(writer, whole + cut)
    yield AppendBlockEnd(writer, len(whole), last[5:], len(documents), len(documents), 1)
    yield AppendBlock(writer, whole)
    yield AppendBlockEnd(writer, len(whole), b"", len(documents) - 1, 20, 2)
    yield AppendBlockEnd(writer, len(whole), framed[0], 1, 21, 3)
    yield ConditionalAppend(writer, 22, 0, Event(documents[0]), 4)
    entries = [TableEntry(TableKey(b"Oslo"), TableValue(value)) for value in (b"", documents[0])]
    yield UpdateTableEntries(5, "s/t", "", TableEntries(tuple(entries)), -1)
    empty, x = bytes(8), b"\0\0\0\0\0\0\0\x01x"
    for data in (empty, empty + x, x + empty + x, empty + x[:-1]):
        yield AppendBlockEnd(writer, len(data), data, 1, 23, 6)
    yield ConditionalAppend(writer, 24, 0, Event(b""), 7)


async def test_filters_match_the_same_records_of_all_fixtures(tmp_path: Path, chromium: Chromium) -> None:
    records = [*all_fixtures(), *odd_records()]
    filters = [*FILTERS, "connection = 9007199254740993", "connection < 0", "time > 100000h", "latency < 0"]
    expected = {text: python_finds(records, text) for text in filters}
    assert all(isinstance(found, list) for found in expected.values())
    assert sum(bool(found) for found in expected.values()) > 0.8 * len(filters)
    async with shown(chromium, tmp_path, saved(tmp_path, records)) as browser:
        found = await browser.get(call(_MATCHES, filters))
        assert dict(zip(filters, found, strict=True)) == expected


async def test_filters_are_refused_that_python_refuses(tmp_path: Path, chromium: Chromium) -> None:
    filters = [
        "type = APPEND_BLOCK_END and direction = reply", "direction = request and (type = DATA_APPENDED)",
        "(type = HELLO and code = 9)", "type = HELLO and code = 9 and size > 1", "type = EVENT or type ~ *NOPE*",
        "kind = bytes and writer ~ *", "data < 3", "data = 0x1", "data ~ 0x", "data.city < a", "data.", "data[", "data",
        "data[0]city = 1", "data ~ ", "data ~ /(/", "broken = lost", "broken > x",
        "data ~ '[' and data[-1] = 2",
        "type = 'x\ty'", "kind = \"'\"", "kind = 'é\u200b\u2028'", "code = 0x5", "size = 1.5.5", "time > 1S",
        "writer = {01234567-89ab-cdef-0123-456789abcdef}", "type = READ_SEGMNT", "typ = HELLO", "type = HELLO or",
        *OF_DOORS,
    ]  # fmt: skip
    records = list(all_fixtures())[:40]
    expected = {text: python_finds(records, text) for text in filters}
    for text, taken in OF_DOORS.items():
        assert isinstance(expected[text], str) is ("trace" not in taken.split()), text
    async with shown(chromium, tmp_path, saved(tmp_path, records)) as browser:
        for text, found in zip(filters, await browser.get(call(_MATCHES, filters)), strict=True):
            if isinstance(expected[text], str):
                assert isinstance(found, str), text
            else:
                assert found == expected[text], text


_DESCRIBE = """(frames) => frames.map((frame) => {
  const raw = Uint8Array.from(frame.match(/../g) ?? [], (each) => parseInt(each, 16));
  return describe(new Bytes(raw, raw.length, raw.length)).map((each) => [
    each.offset, each.length, each.field, each.note, each.secret,
    each.value === null || each.value === undefined || typeof each.value === "object" ? "" : String(each.value),
    each.kind]);
})"""


def python_spans(frame: bytes) -> list[list[Any]]:
    def value(of: Any, kind: str) -> str:
        if of is None or kind == "data" or isinstance(of, list) or (isinstance(of, str) and not of):
            return ""
        return str(of).lower() if isinstance(of, bool) else str(int(of)) if isinstance(of, int) else of

    return [
        [span.offset, span.length, span.field, span.note, span.secret, value(span.value, span.kind), span.kind]
        for span in describe(frame, unknown="keep").spans
    ]


async def test_bytes_have_the_same_meaning(tmp_path: Path, chromium: Chromium) -> None:
    lines = [
        json.loads(line)
        for name in ("commands", "malformed", "mutations")
        for line in (FIXTURES / "vectors" / f"{name}.jsonl").read_text("utf-8").splitlines()
    ]
    frames = [bytes.fromhex(line["hex"]) for line in lines if line.get("hex") is not None and len(line["hex"]) < 4000]
    frames += [
        fixture.data for fixture in all_fixtures() if fixture.kind is RecordKind.FRAME and len(fixture.data) < 4000
    ]
    frames = list(dict.fromkeys(frames))
    assert len(frames) > 1500
    async with shown(chromium, tmp_path, saved(tmp_path, list(all_fixtures())[:5])) as browser:
        for at in range(0, len(frames), 500):
            part = frames[at : at + 500]
            found = await browser.get(call(_DESCRIBE, [each.hex() for each in part]))
            for frame, spans in zip(part, found, strict=True):
                assert spans == python_spans(frame), frame.hex()
