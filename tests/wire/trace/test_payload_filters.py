"""Filters of payloads: text, hex, JSON paths; which bytes of which commands they see."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

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
from segstore.wire.trace import Exchanges, FilterError, parse_filter
from tests.looped import looped
from tests.wire.trace.traces import record

W = UUID(int=1)
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


def test_a_comparison_that_cannot_hold_is_refused_with_its_column() -> None:
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
