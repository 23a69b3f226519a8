"""Packing: columns, blocks and what is left out of them."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from segstore.view.pack import BLOCK_RECORDS, HEADS, TAIL_BYTES, Sections, pack, planes, shortened
from segstore.wire import AppendBlock, AppendBlockEnd, CreateSegment, DataAppended, encode
from segstore.wire.trace import Damage, Direction, Exchanges, Record, RecordKind
from tests.looped import looped
from tests.view.samples import all_fixtures
from tests.view.test_page import WRITER, dialogue


def packed(records: Sequence[Record], most: int = 1 << 60, damages: Sequence[Damage] = ()) -> Sections:
    return pack(lambda: iter(records), damages, most, lambda: {"file": "a file"})


def tables(sections: Sections) -> Any:
    return json.loads(unpacked(sections["tables"]))


def unpacked(section: bytes) -> bytes:
    return zlib.decompress(section, -zlib.MAX_WBITS)


def column(sections: Sections, name: str, width: int) -> list[int]:
    """The numbers of a column, read as the page's script does."""
    raw, count = unpacked(sections[name]), tables(sections)["count"]
    found = [0] * count
    for plane in range(len(raw) // count if count else 0):
        for at in range(count):
            found[at] |= raw[plane * count + at] << 8 * plane
    return [each - (1 << 8 * width) if each >> 8 * width - 1 else each for each in found]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_planes_hold_every_number_in_as_few_planes_as_possible(values: list[int]) -> None:
    raw = planes(8, values)
    count = len(values)
    least = max(((value & (1 << 64) - 1).bit_length() + 7 >> 3 for value in values), default=0)
    assert len(raw) == least * count
    whole = raw + bytes((8 - least) * count)
    assert [struct.unpack("<q", whole[at::count])[0] for at in range(count)] == values


def test_columns_say_what_exchanges_say() -> None:
    records = list(all_fixtures())
    sections, exchanges = packed(records), Exchanges()
    seen = list(map(exchanges.see, records))
    said = tables(sections)
    names = [name for name, _, _ in said["names"]]
    assert [tuple(names[each] for each in said["sets"][at]) for at in column(sections, "segments", 4)] == [
        each.segments for each in seen
    ]
    assert [said["writers"][at] for at in column(sections, "writer", 4)] == [
        None if each.writer_id is None else str(each.writer_id) for each in seen
    ]
    assert column(sections, "request_id", 8) == [each.request_id or 0 for each in seen]
    assert column(sections, "size", 4) == [each.size for each in seen]
    places = {id(each): at for at, each in enumerate(seen)}
    replies = {places[id(asked)]: at for at, each in enumerate(seen) for asked in each.answers}
    links = column(sections, "reply", 4)
    assert {at: at + link for at, link in enumerate(links) if link} == replies
    assert len(replies) > 500
    assert b"".join(record.data for record in records) == b"".join(
        unpacked(section) for name, section in sections.items() if name.startswith("bytes-")
    )


def test_a_block_is_linked_to_its_end_by_its_writer() -> None:
    sections = packed(dialogue())
    assert [at - link for at, link in enumerate(column(sections, "block", 4)) if link] == [7]
    assert column(sections, "events", 4)[8] == 3
    other = [
        Record(0, 1, Direction.REQUEST, RecordKind.FRAME, encode(each))
        for each in (AppendBlock(WRITER, b""), AppendBlockEnd(type(WRITER)(int=8), 0, b"", 1, 1, 1))
    ]
    assert not any(column(packed(other), "block", 4))


def test_a_reopened_number_is_another_lane() -> None:
    records = dialogue()
    sections = packed([*records, *records])
    assert column(sections, "lane", 4) == [0] * len(records) + [1] * len(records)
    assert [number for number, _ in tables(sections)["lanes"]] == ["1", "1"]


def test_tokens_are_overwritten() -> None:
    secret = b"secret-token"
    frame = encode(CreateSegment(1, "s", 0, 0, secret.decode()))
    sections = packed([Record(0, 1, Direction.REQUEST, RecordKind.FRAME, frame)])
    assert secret not in unpacked(sections["bytes-0"])
    assert b"*" * len(secret) in unpacked(sections["bytes-0"])


def noise(count: int, size: int) -> Iterator[Record]:
    """Appends whose payload cannot be compressed."""
    rng = random.Random(3)
    for at in range(count):
        frame = encode(AppendBlock(WRITER, rng.randbytes(size)))
        yield Record(at * 1000, 1, Direction.REQUEST, RecordKind.FRAME, frame)
        yield Record(at * 1000, 1, Direction.REPLY, RecordKind.FRAME, encode(DataAppended(at, WRITER, at, at, at)))


@looped("share", [3, 10])
def test_payloads_are_shortened_to_the_wanted_size(share: int) -> None:
    records = list(noise(BLOCK_RECORDS, 300))
    whole = sum(len(record.data) for record in records)
    sections = packed(records, whole // share)
    said = tables(sections)
    assert said["head"] in HEADS
    assert said["head"] < 300
    assert sum(map(len, sections.values())) <= whole // share
    longer = sum(len(each.data) > said["head"] + TAIL_BYTES for each in records)
    assert said["left_out"] == longer
    kept = b"".join(unpacked(section) for name, section in sections.items() if name.startswith("bytes-"))
    assert kept == b"".join(shortened(each.data, said["head"]) for each in records)
    assert f"the others ({whole - len(kept):,} bytes)" in said["notes"][-1]
    assert said["block"] == BLOCK_RECORDS
    assert len(kept) < whole


@looped(("size", "head", "expected"), [(10, 0, 10), (16, 0, 16), (17, 0, 16), (48, 32, 48), (49, 32, 48)])
def test_a_shortened_record_has_its_first_and_last_bytes(size: int, head: int, expected: int) -> None:
    data = bytes(range(size))
    found = shortened(data, head)
    assert len(found) == expected
    assert found == data or (found[:head] == data[:head] and found[head:] == data[-TAIL_BYTES:])


def test_damage_is_placed_before_the_record_that_follows_it() -> None:
    damages: list[Damage] = []
    first, torn = Damage(64, 8, False, "one"), Damage(640, 8, True, "two")

    def read() -> Iterator[Record]:
        records = dialogue()
        yield from records[:3]
        damages.append(first)
        yield from records[3:]
        damages.append(torn)

    sections = pack(read, damages, 1 << 60, dict)
    assert tables(sections)["gaps"] == [[3, str(first)], [14, str(torn)]]


numbers = st.integers(-(2**63), 2**63 - 1)
records_of_any_kind = st.builds(
    Record, numbers, numbers, st.sampled_from(Direction), st.sampled_from(RecordKind), st.binary(max_size=60)
)


@given(st.lists(records_of_any_kind, max_size=12))
def test_any_records_can_be_packed(records: list[Record]) -> None:
    sections = packed(records, 100)
    said = tables(sections)
    assert said["count"] == len(records)
    assert [int(said["lanes"][lane][0]) for lane in column(sections, "lane", 4)] == [
        each.connection for each in records
    ]
    start, at = int(said["start_ns"]), 0
    for difference, record in zip(column(sections, "ts", 8), records, strict=True):
        at = (at + difference) & (1 << 64) - 1
        assert (start + at - record.ts_ns) % (1 << 64) == 0
