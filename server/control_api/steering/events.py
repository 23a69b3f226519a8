"""Routes that write and read events of streams and transactions, and entries of key-value tables.

Events go into segments by their routing keys, as with Pravega's clients, through the controller's session with the
owning store; so they are appended like a client's events, and wake readers. The events of a request to one segment are
one append. Stored bytes without the requested form are shown in another form, so every content can be shown: JSON that
does not parse as text, text that is not UTF-8 as Base64.

A page of events is read from a position, a stream cut. A segment is read to its end before its successors, so events of
one routing key keep their order. Invariant: a page has at most `limit` events and about 1 MiB, so a request takes
bounded memory.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query, Response

from segstore.server.control_api.controlled import Here
from segstore.server.control_api.detail import readable_form
from segstore.server.control_api.problems import ApiProblem
from segstore.server.control_api.steering import models as m
from segstore.server.control_api.steering.arranging import arranging, controller_of, parse_position, position_text
from segstore.server.controller import Controller, SegmentAdmin
from segstore.server.controller.state import StreamSegment, Table
from segstore.wire.hashing import position_of, position_of_key

WRITER: Final = UUID("5e657365-0000-4000-8000-68747470617a")
"""The writer id of events written here."""

_PAGE_BYTES: Final = 1 << 20
_MOST_EVENT_BYTES: Final = 8 << 20
_MOST_ROUNDS: Final = 50
"""How often an append to a sealed segment is tried again, every `_ROUND_S`, while its successors are made."""
_ROUND_S: Final = 0.02
_HEADER: Final = struct.Struct(">ii")
_AFTER: Final = re.compile(r"\d{1,9}:[A-Za-z0-9_=-]{0,12000}", re.ASCII)
Form = Literal["text", "json", "base64", "readable"]
_JSON: Final = msgspec.json.Decoder()
ENCODER: Final = msgspec.json.Encoder()
_As = Annotated[Form, Query(alias="as", description="How to show contents. `readable`: only their starts.")]
_Limit = Annotated[int, Query(ge=1, le=1_000)]
_STREAM: Final = "/streams/{scope}/{stream}"
_ENTRIES: Final = "/tables/{scope}/{table}/entries"


router = APIRouter(prefix="/v1")


def _json(value: Any) -> Response:
    return Response(ENCODER.encode(value), media_type="application/json")


def shown_as(data: bytes, form: Form) -> dict[str, Any]:
    """Returns a content for `ENCODER`, in `form` or, if impossible, in another form."""
    if form == "readable":
        kind, text = readable_form(data)
        return {"hex" if kind == "hex" else "text": text}
    if form == "json":
        try:
            _JSON.decode(data)
            return {"json": msgspec.Raw(data)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            form = "text"
    if form == "text":
        with suppress(UnicodeDecodeError):  # other bytes are shown as Base64
            return {"text": data.decode()}
    return {"base64": base64.b64encode(data).decode()}


# --- events -----------------------------------------------------------------------------------------------------------


@router.post(f"{_STREAM}/events", tags=["events"], summary="Write events", status_code=201)
async def write_events(controlled: Here, scope: m.Scope, stream: m.Stream, body: m.NewEvents) -> m.WrittenEvents:
    events = _framed(body)
    async with arranging(controlled) as controller:
        written = await _write(controller, scope, stream, events)
    return m.WrittenEvents(events=[written[index] for index in range(len(events))])


@router.post(
    f"{_STREAM}/transactions/{{transaction}}/events",
    tags=["transactions"],
    summary="Write events into a transaction",
    status_code=201,
)
async def write_transaction(
    controlled: Here, scope: m.Scope, stream: m.Stream, transaction: m.Transaction, body: m.NewEvents
) -> m.WrittenEvents:
    events = _framed(body)
    async with arranging(controlled) as controller:
        status = controller.transactions.status(scope, stream, transaction)
        if status is None or status.value != "OPEN":
            what = "not there" if status is None else status.value
            raise ApiProblem(404 if status is None else 409, f"transaction {transaction} is {what}", "path.transaction")
        targets = dict(controller.streams.get(scope, stream).transaction_segments(transaction))
        written = await _append(controller.segments, targets, dict(enumerate(events)))
    if len(written) < len(events):
        raise ApiProblem(409, f"transaction {transaction} has ended", "path.transaction")
    return m.WrittenEvents(events=[written[index] for index in range(len(events))])


@router.get(f"{_STREAM}/events", tags=["events"], summary="Read events from a position", response_model=m.EventPage)
async def read_events(
    controlled: Here,
    scope: m.Scope,
    stream: m.Stream,
    start: Annotated[
        str, Query(alias="from", max_length=32_768, description="`next` of a page; the beginning if it is empty.")
    ] = "",
    limit: _Limit = 100,
    form: _As = "text",
) -> Response:
    controller = controller_of(controlled)
    cut = parse_position(start, "query.from") if start else await controller.streams.head(scope, stream)
    if not controller.streams.is_cut_valid(scope, stream, cut):
        raise ApiProblem(422, f"query.from: this is no position of stream {scope}/{stream}", "query.from")
    gone = next((segment for segment in cut if segment in controller.streams.get(scope, stream).deleted), None)
    if gone is not None:
        why = f"query.from: segment {gone} was removed by a truncation; read from the beginning, without from"
        raise ApiProblem(422, why, "query.from")
    page = _Page(controller, scope, stream, cut, limit)
    await page.read()
    events = [
        {"segment": segment, "offset": offset, "size": len(data), **shown_as(data, form)}
        for segment, offset, data in page.events
    ]
    return _json({"events": events, "next": position_text(page.cut), "at_end": page.at_end})


async def _write(
    controller: Controller, scope: str, stream: str, events: list[tuple[str, bytes]]
) -> dict[int, m.WrittenEvent]:
    """Writes framed events; if a segment is sealed meanwhile, its events go to its successors."""
    written: dict[int, m.WrittenEvent] = {}
    rounds = 0
    while len(written) < len(events):
        if rounds == _MOST_ROUNDS:
            raise ApiProblem(409, f"a segment of stream {scope}/{stream} is sealed, and has no successor", "path")
        await asyncio.sleep(_ROUND_S if rounds else 0)
        known = controller.streams.get(scope, stream)
        if known.sealed:
            raise ApiProblem(409, f"stream {scope}/{stream} is sealed", "path.stream")
        targets = {segment: known.segment_name(segment) for segment in await controller.streams.current(scope, stream)}
        left = {index: event for index, event in enumerate(events) if index not in written}
        more = await _append(controller.segments, targets, left)
        rounds = 0 if more else rounds + 1
        written |= more
    return written


def _framed(body: m.NewEvents) -> list[tuple[str, bytes]]:
    """Returns routing keys and framed events."""
    events = []
    for index, event in enumerate(body.events):
        data = event.data(f"body.events[{index}]")
        events.append((event.routing_key, _HEADER.pack(0, len(data)) + data))
    return events


def _at(segments: Sequence[StreamSegment], position: float) -> StreamSegment:
    """Returns the segment of a position. The segments are sorted by key."""
    return segments[bisect_right([segment.start for segment in segments], position) - 1]


async def _append(
    admin: SegmentAdmin, targets: Mapping[StreamSegment, str], events: Mapping[int, tuple[str, bytes]]
) -> dict[int, m.WrittenEvent]:
    """Appends events to the segments of their keys. Returns their places, without events of sealed segments."""
    segments = sorted(targets, key=lambda each: each.start)
    by_segment: dict[StreamSegment, list[int]] = {}
    for index, (key, _) in events.items():
        by_segment.setdefault(_at(segments, position_of(key)), []).append(index)
    written = {}
    for segment, indexes in by_segment.items():
        name = targets[segment]
        offset = await admin.append_events(name, WRITER, [events[index][1] for index in indexes])
        if offset is None:
            continue
        for index in indexes:
            written[index] = m.WrittenEvent(segment=name, offset=offset)
            offset += len(events[index][1])
    return written


class _Page:
    """Reads a page of events. Attributes: cut (where the next page begins), at_end, events (segment, offset, data)."""

    def __init__(self, controller: Controller, scope: str, stream: str, cut: Mapping[int, int], limit: int) -> None:
        self.cut = dict(cut)
        self.at_end = False
        self.events: list[tuple[str, int, bytes]] = []
        self._controller = controller
        self._admin = controller.segments
        self._scope = scope
        self._stream = stream
        self._limit = limit
        self._bytes = 0

    def _is_full(self) -> bool:
        return len(self.events) >= self._limit or self._bytes >= _PAGE_BYTES

    async def read(self) -> None:
        """Reads until the page is full or no segment of the cut has more."""
        stream = self._controller.streams.get(self._scope, self._stream)
        while True:
            ended = set()
            for identifier in sorted(self.cut):
                if await self._read_segment(identifier, stream.segment_name(stream.segment(identifier))):
                    ended.add(identifier)
                if self._is_full():
                    return
            if not await self._go_on(ended):
                self.at_end = True
                return

    async def _read_segment(self, identifier: int, name: str) -> bool:
        """Reads events of one segment; returns whether it was sealed and read to its end."""
        info = await self._admin.segment_info(name)
        head = self._controller.streams.get(self._scope, self._stream).cut.get(identifier, 0)
        if self.cut[identifier] > max(info.write_offset, head):  # a stream may begin beyond the end, as in Pravega
            why = f"query.from: offset {self.cut[identifier]} of {name} is beyond its end, {info.write_offset}"
            raise ApiProblem(422, why, "query.from")
        at = max(self.cut[identifier], info.start_offset)
        while at < info.write_offset and not self._is_full():
            data = await self._admin.read_segment(name, at, min(info.write_offset - at, _PAGE_BYTES))
            done = 0
            for offset, event in _events_in(data, at, name):
                self.events.append((name, offset, event))
                self._bytes += len(event)
                done = offset + _HEADER.size + len(event) - at
                if self._is_full():
                    break
            at += done or await self._read_large(name, at, data, info.write_offset)
        self.cut[identifier] = at
        return info.is_sealed and at >= info.write_offset

    async def _read_large(self, name: str, at: int, data: bytes, end: int) -> int:
        """Reads an event that is larger than a page; returns its size with the header."""
        size = _HEADER.size + _HEADER.unpack_from(data)[1] if len(data) >= _HEADER.size else end - at + 1
        if at + size > end:
            raise ApiProblem(409, f"{name} holds no whole event at offset {at}", "path.stream")
        if size > _MOST_EVENT_BYTES:
            why = f"the event at offset {at} of {name} has {size} bytes; up to {_MOST_EVENT_BYTES} are shown here"
            raise ApiProblem(409, why, "path.stream")
        self.events.append((name, at, (await self._admin.read_segment(name, at, size))[_HEADER.size :]))
        self._bytes += size
        return size

    async def _go_on(self, ended: set[int]) -> bool:
        """Replaces ended segments of the cut by their successors; returns whether there were any.

        A segment stays until all predecessors of its successors have ended, so that the cut covers each key once.
        """
        streams = self._controller.streams
        following = {segment: await streams.following(self._scope, self._stream, segment) for segment in sorted(ended)}
        leaving = {identifier for identifier, successors in following.items() if successors}
        while waiting := {
            segment for segment in leaving if not all(map(leaving.issuperset, following[segment].values()))
        }:
            leaving -= waiting
        for segment in leaving:
            del self.cut[segment]
            self.cut |= {successor.id: 0 for successor in following[segment]}
        return bool(leaving)


def _events_in(data: bytes, base: int, name: str) -> Iterator[tuple[int, bytes]]:
    """Yields the offset and the content of each whole event. Raises ApiProblem for other bytes."""
    at = 0
    while at + _HEADER.size <= len(data):
        kind, length = _HEADER.unpack_from(data, at)
        if kind or length < 0:
            raise ApiProblem(409, f"{name} holds no event at offset {base + at}", "path.stream")
        end = at + _HEADER.size + length
        if end > len(data):
            return
        yield base + at, data[at + _HEADER.size : end]
        at = end


# --- entries of tables ------------------------------------------------------------------------------------------------


@router.post(_ENTRIES, tags=["tables"], summary="Write entries", status_code=204)
async def write_entries(controlled: Here, scope: m.Scope, table: m.Table, body: m.NewEntries) -> None:
    async with arranging(controlled) as controller:
        known = controller.state.table(scope, table)
        by_segment: dict[str, dict[bytes, bytes]] = {}
        for index, entry in enumerate(body.entries):
            where = f"body.entries[{index}]"
            key, value = _key(known, entry.key, f"{where}.key"), entry.value.data(f"{where}.value")
            by_segment.setdefault(_partition(known, key), {})[key] = value
        for segment, entries in by_segment.items():
            await controller.segments.update_table(segment, entries)


@router.delete(_ENTRIES, tags=["tables"], summary="Remove an entry", status_code=204)
async def remove_entry(
    controlled: Here,
    scope: m.Scope,
    table: m.Table,
    key: Annotated[str, Query(max_length=12_000, description="Text in UTF-8.")],
) -> None:
    async with arranging(controlled) as controller:
        known = controller.state.table(scope, table)
        data = _key(known, m.Content(text=key), "query.key")
        await controller.segments.remove_keys(_partition(known, data), [data])


@router.get(_ENTRIES, tags=["tables"], summary="Read entries", response_model=m.EntryPage)
async def read_entries(
    controlled: Here,
    scope: m.Scope,
    table: m.Table,
    key: Annotated[str | None, Query(max_length=12_000, description="Only the entry of this key.")] = None,
    after: Annotated[str, Query(max_length=12_100, description="`next` of the previous page.")] = "",
    limit: _Limit = 100,
    form: _As = "text",
) -> Response:
    controller = controller_of(controlled)
    known = controller.state.table(scope, table)
    following: str | None = None
    if key is not None:
        data = _key(known, m.Content(text=key), "query.key")
        entries = await controller.segments.read_table(_partition(known, data), 1, data, data)
    else:
        entries, following = await _entries(controller.segments, known, after, limit)
    shown = [
        {
            "key": shown_as(bytes(entry.key.data), "readable" if form == "readable" else "text"),
            "value": shown_as(bytes(entry.value.data), form),
            "version": entry.key.key_version,
        }
        for entry in entries
    ]
    return _json({"entries": shown, "next": following})


def _key(table: Table, content: m.Content, where: str) -> bytes:
    data, wanted = content.data(where), table.config.key_bytes
    if len(data) != wanted:
        why = f"{where}: a key of table {table.scope}/{table.name} has {wanted} bytes, not {len(data)}"
        raise ApiProblem(422, why, where)
    return data


def _partition(table: Table, key: bytes) -> str:
    position = position_of_key(key[: table.config.primary_key_bytes])
    return table.segment_name(_at(table.epoch.segments, position))


async def _entries(admin: SegmentAdmin, table: Table, after: str, limit: int) -> tuple[list[Any], str | None]:
    """Returns a page of entries, and the text that names its end; None if there are no more."""
    number, first = _after(after, table) if after else (0, b"")
    entries: list[Any] = []
    partitions = table.epoch.segments
    size = 0
    while number < len(partitions):
        some = await admin.read_table(table.segment_name(partitions[number]), limit - len(entries), first)
        for entry in some:
            entries.append(entry)
            size += len(entry.value.data)
            if len(entries) == limit or size >= _PAGE_BYTES:
                following = _next_key(bytes(entry.key.data))
                if following:
                    return entries, f"{number}:{base64.urlsafe_b64encode(following).decode()}"
                return entries, f"{number + 1}:"
        if some and (following := _next_key(bytes(some[-1].key.data))):
            first = following
        else:
            number, first = number + 1, b""
    return entries, None


def _after(text: str, table: Table) -> tuple[int, bytes]:
    """Returns the number of a partition, and the key at which a page begins there; b"" for its first key."""
    try:
        if not _AFTER.fullmatch(text):
            raise ValueError
        number, _, key = text.partition(":")
        first = base64.urlsafe_b64decode(key)
        if first and len(first) != table.config.key_bytes:
            raise ValueError
        return int(number), first
    except (ValueError, binascii.Error) as error:
        raise ApiProblem(422, "query.after: this is not `next` of a page of entries", "query.after") from error


def _next_key(key: bytes) -> bytes:
    """Returns the next key of the same length; b"" after the last key."""
    number = int.from_bytes(key) + 1
    return b"" if number >> 8 * len(key) else number.to_bytes(len(key))
