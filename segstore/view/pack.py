"""Packs a trace into columns for the page: what its script needs to draw, filter and explain every record.

A pack is a dict of sections, each compressed with deflate (no header):

- `tables`: a JSON object: names, lanes, writers, damage, and what was left out
- `states`: as JSON, what replies say about segments, writers and transactions (`state.py`)
- columns: one number per record. A column is stored by planes: first the lowest byte of every number, then the next.
  Planes that are zero throughout are omitted, so the size of a section gives the number of its planes.
- `bytes-N`: the bytes of the records of block N, of `BLOCK_RECORDS` each, one after another. Of a record longer than
  `head + tail` bytes only its first and last bytes are stored. `head` is the largest for which the pack has the wanted
  size.

A lane is one life of a connection: a number that is opened again gets another lane, as in `segstore.wire.trace.diff`.

Invariants: whatever the records are, nothing is raised; delegation tokens are overwritten; memory is that of the
columns, of the compressed sections and of a bounded sample of blocks.
"""

from __future__ import annotations

import itertools
import json
import sys
import zlib
from array import array
from operator import gt, sub
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from segstore.traces import redacted
from segstore.view.state import States
from segstore.wire.commands import AppendBlockEnd
from segstore.wire.names import SegmentName
from segstore.wire.trace import Exchanges, RecordKind, unpack_data

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from segstore.wire.trace import Call, Damage, Exchange, Record

BLOCK_RECORDS: Final = 4096
TAIL_BYTES: Final = 16
"""Enough for the fields behind the payload of a frame, such as a request id."""
HEADS: Final = (1 << 30, 65_536, 16_384, 4_096, 1_024, 512, 256, 128, 64, 32, 0)
"""Candidates for the number of first bytes that are stored of a record. The first means all."""

_SAMPLED_BLOCKS: Final = 24
_SAMPLED_BYTES: Final = 32 << 20
_LEVEL: Final = 6
_LONGEST_LABEL: Final = 120
_MOST_NOTES: Final = 1000
_DIRECTION, _MALFORMED, _HAS_ID, _HAS_CODE, _GIVEN_UP = 8, 16, 32, 64, 128
"""Bits of the column `what`; its lowest three are the record's kind."""
_FAILURE, _DOES_NOT_DECODE, _NO_REPLY = 1, 2, 3
"""Values of the column `mark`; 0 for a record without a problem."""

Sections = dict[str, bytes]


class _Index:
    """Numbers the distinct values that it is given, from 0, in order of first appearance."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        return self._places.setdefault(value, len(self._places))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._places)


class _Lanes:
    """The lane of each record, and the page's description of each."""

    def __init__(self) -> None:
        self.described: list[list[Any]] = []
        self._lanes: dict[int, int] = {}
        self._used: list[bool] = []

    def lane(self, record: Record) -> int:
        lane = self._lanes.get(record.connection)
        if lane is None or (record.kind is RecordKind.OPEN and self._used[lane]):
            lane = self._lanes[record.connection] = len(self._used)
            self._used.append(False)
            self.described.append([str(record.connection), ""])
        if record.kind is RecordKind.OPEN:
            facts = unpack_data(record.data) or {}
            self.described[lane][1] = " ".join(dict.fromkeys(map(str, facts.values())))[:_LONGEST_LABEL]
        elif record.kind is not RecordKind.CLOSE:
            self._used[lane] = True
        return lane


class _Columns:
    """The columns of a trace while its records are seen."""

    def __init__(self) -> None:
        self.ts, self.what, self.mark, self.size = array("q"), bytearray(), bytearray(), array("I")
        self.lane, self.code, self.segments, self.writer = array("I"), array("i"), array("I"), array("I")
        self.request_id = array("q")
        self.reply, self.block, self.events, self.call = array("I"), array("I"), array("I"), array("I")
        self.lanes, self.names, self.sets, self.writers = _Lanes(), _Index(), _Index(), _Index()
        self.states = States()
        self.calls: list[dict[str, Any]] = []
        self._places: dict[int, int] = {}
        self.sets(())
        self.writers(None)

    def add(self, seen: Exchange) -> None:
        record, at = seen.record, len(self.ts)
        lane = self.lanes.lane(record)
        command, code, request_id, writer = seen.command, seen.code, seen.request_id, seen.writer_id
        self.ts.append(record.ts_ns)
        self.what.append(
            record.kind
            | (_DIRECTION if record.direction else 0)
            | (_MALFORMED if seen.malformed else 0)
            | (0 if request_id is None else _HAS_ID)
            | (0 if code is None else _HAS_CODE)
        )
        self.mark.append(_FAILURE if seen.failure else _DOES_NOT_DECODE if seen.malformed else 0)
        self.size.append(len(record.data))
        self.lane.append(lane)
        self.code.append(code or 0)
        names = seen.segments
        self.segments.append(self.sets(tuple(map(self.names, names))) if names else 0)
        self.writer.append(0 if writer is None else self.writers(writer.bytes))
        self.request_id.append(request_id or 0)
        self.reply.append(0)
        self.block.append(0)
        self.events.append(0)
        self.call.append(0 if seen.call is None else self._call(seen.call))
        if type(command) is AppendBlockEnd:
            self.events[at] = max(command.num_events, 0)
            if seen.block is not None:
                self.block[at] = at - self._places[id(seen.block)]
        if not record.direction:
            # Only what is still pending is looked up, and a pending object's address is its own.
            self._places[id(seen)] = at
        for answered in seen.answers:
            self.reply[self._places[id(answered)]] = at - self._places[id(answered)]
        for request in seen.pending:
            self.mark[self._places[id(request)]] = _NO_REPLY
        for request in seen.given_up:
            self.what[self._places[id(request)]] |= _GIVEN_UP
            self.mark[self._places[id(request)]] = 0
        self.states.see(at, lane, seen)

    def _call(self, call: Call) -> int:
        """Keeps what the page shows of a controller call; returns its number, from 1."""
        facts = {"Method": call.rpc, "Outcome": call.outcome, "Details": call.details, "Client": call.peer}
        metadata = {f"Metadata {name}": value for name, value in call.metadata.items()}
        fields = None if call.fields is None else json.dumps(call.fields, indent=2, ensure_ascii=False)
        self.calls.append(
            {
                "rpc": call.rpc,
                "status": call.outcome,
                "facts": {name: value for name, value in facts.items() if value} | metadata,
                "message": fields or "The message does not decode.",
                "failure": call.failed,
                "streams": [list(stream) for stream in call.streams],
            }
        )
        return len(self.calls)

    def sections(self) -> Iterator[tuple[str, bytes]]:
        yield "ts", planes(8, map(sub, self.ts, self.ts[:1] + self.ts))
        yield "what", bytes(self.what)
        yield "mark", bytes(self.mark)
        for name in ("size", "lane", "code", "segments", "writer", "reply", "block", "events", "call"):
            yield name, planes(4, getattr(self, name))
        yield "request_id", planes(8, self.request_id)
        yield "states", _json(self.states.as_json())

    def tables(self) -> dict[str, Any]:
        names = [SegmentName.parse(name) for name in self.names]
        return {
            "count": len(self.ts),
            "start_ns": str(self.ts[0]) if self.ts else "0",
            "lanes": self.lanes.described,
            "names": [[name.name, name.scope, name.stream] for name in names],
            "sets": list(self.sets),
            "writers": [None if raw is None else str(UUID(bytes=raw)) for raw in self.writers],
            "calls": self.calls,
        }


def planes(width: int, values: Iterable[int]) -> bytes:
    """Returns numbers of `width` bytes by planes, without planes of zeros; negative numbers wrap around."""
    mask = (1 << 8 * width) - 1
    numbers = array("Q", [value & mask for value in values])
    least = (max(numbers, default=0).bit_length() + 7) // 8
    if sys.byteorder == "big":
        numbers.byteswap()
    raw = numbers.tobytes()
    return b"".join(raw[plane::8] for plane in range(least))


def deflated(raw: bytes) -> bytes:
    """Compresses a section."""
    return zlib.compress(raw, _LEVEL, -zlib.MAX_WBITS)


def shortened(data: bytes, head: int) -> bytes:
    """The bytes of a record that are stored for a given `head`."""
    return data if len(data) <= head + TAIL_BYTES else data[:head] + data[-TAIL_BYTES:]


class _Sample:
    """Every Nth block of a trace, of which at most a bounded number is held: N doubles as they become too many."""

    def __init__(self) -> None:
        self.step = 1
        self._held: dict[int, list[bytes]] = {}
        self._bytes = 0

    def add(self, at: int, data: bytes) -> None:
        block = at // BLOCK_RECORDS
        if block % self.step:
            return
        self._held.setdefault(block, []).append(data)
        self._bytes += len(data)
        while len(self._held) > 1 and (len(self._held) > _SAMPLED_BLOCKS or self._bytes > _SAMPLED_BYTES):
            self.step *= 2
            self._held = {number: held for number, held in self._held.items() if not number % self.step}
            self._bytes = sum(map(len, (row for held in self._held.values() for row in held)))

    def size(self, head: int, count: int) -> int:
        """The estimated size of all blocks of a trace of `count` records, compressed."""
        held = sum(map(len, self._held.values()))
        packed = sum(len(deflated(b"".join(shortened(row, head) for row in rows))) for rows in self._held.values())
        return packed * count // held if held else 0


def pack(
    read: Callable[[], Iterable[Record]],
    damages: Sequence[Damage],
    most_bytes: int,
    describe: Callable[[], dict[str, Any]],
) -> Sections:
    """Returns the sections of a trace.

    read: returns the records from the first one; called twice. damages: those found so far, which grows as records are
    read. most_bytes: the wanted size of the sections, which bounds only the records' bytes. describe: called last;
    returns facts about the trace that become part of `tables`.
    """
    columns, exchanges, sample = _Columns(), Exchanges(), _Sample()
    gaps: list[list[Any]] = []
    for at, record in enumerate(redacted(read())):
        if len(damages) > len(gaps):  # slices cost more than a comparison
            gaps += ([at, str(damage)] for damage in damages[len(gaps) :])
        columns.add(exchanges.see(record))
        sample.add(at, record.data)
    count = len(columns.ts)
    gaps += ([count, str(damage)] for damage in damages[len(gaps) :])
    sections = {name: deflated(raw) for name, raw in columns.sections()}
    tables = columns.tables()
    room = most_bytes - sum(map(len, sections.values())) - len(deflated(_json(tables)))
    head = next((candidate for candidate in HEADS if sample.size(candidate, count) <= room), HEADS[-1])
    over = [size - head - TAIL_BYTES for size in columns.size if size > head + TAIL_BYTES]
    tables |= {"gaps": gaps, "head": head, "tail": TAIL_BYTES, "block": BLOCK_RECORDS, **describe()}
    tables |= {"left_out": len(over), "notes": _notes(gaps, columns.ts, over, head)}
    rows = (shortened(record.data, head) for record in itertools.islice(redacted(read()), count))  # it may have grown
    blocks = []
    while block := list(itertools.islice(rows, BLOCK_RECORDS)):
        blocks.append(deflated(b"".join(block)))
    sections = {"tables": deflated(_json(tables)), **sections}
    return sections | {f"bytes-{number}": packed for number, packed in enumerate(blocks)}


def _notes(gaps: list[list[Any]], times: array[int], over: list[int], head: int) -> list[str]:
    """What is not, or not as it was recorded, on the page. over: how many bytes of long records are left out."""
    notes = [f"Before record {at + 1}: {text}" for at, text in gaps[:_MOST_NOTES]]
    if over:
        notes.append(
            f"{_records(len(over))} longer than {head + TAIL_BYTES} bytes: their first {head} and last {TAIL_BYTES}"
            f" bytes are on this page, the others ({sum(over):,} bytes) are only in the file."
        )
    if backwards := sum(map(gt, itertools.accumulate(times, max), times)):
        notes.append(f"{_records(backwards)} with a time before that of an earlier one: drawn at the later time.")
    return notes


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
