"""Describes one request in detail: its frames byte by byte, its payload, its timeline and its neighbours.

Everything is bounded: a frame shows its first bytes and fields, a payload the starts of its first events, or keys and
values. Delegation tokens are never shown, because they are not kept.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from segstore.server.control_api.models import Frame, FrameField, Moment, Neighbour, Payload, RequestDetail, RequestInfo
from segstore.server.control_api.problems import shown
from segstore.wire import AppendBlock, AppendBlockEnd, ConditionalAppend, ConditionalBlockEnd, SegmentRead
from segstore.wire.inspect import describe, joined, readable
from segstore.wire.trace import Direction, Exchange, RecordKind, to_line, unpack_data
from segstore.wire.validation import unique

if TYPE_CHECKING:
    from segstore.server.traffic import RecordedRequest, Traffic
    from segstore.wire import Buffer

_FRAME_BYTES: Final = 64 * 1024
_SHOWN_BYTES: Final = 2 * 1024
_MOST_FIELDS: Final = 400
_VALUE_CHARACTERS: Final = 400
_MOST_EVENTS: Final = 50
_EVENT_BYTES: Final = 4 * 1024
_HEX_BYTES: Final = 512
_MOST_NESTED: Final = 100
"""An event with more objects or lists is shown as text: indenting deep ones takes long."""
_FIXTURE_BYTES: Final = 128 * 1024
_HEADER: Final = struct.Struct(">ii")


def detail_of(
    info: RequestInfo, recorded: RecordedRequest, beside: list[tuple[int, Exchange]], traffic: Traffic
) -> RequestDetail:
    """The detail of a request whose `info` is known, with the records beside it."""
    frames = [("request", exchange) for exchange in (recorded.request.block, recorded.request) if exchange is not None]
    if recorded.reply is not None:
        frames.append(("reply", recorded.reply))
    size = sum(frame.size for _, frame in frames)
    fixture = [to_line(frame.record, traffic.started_ns) for _, frame in frames] if size <= _FIXTURE_BYTES else []
    return RequestDetail(
        **info.model_dump(),
        peer=shown(traffic.peers.get(recorded.request.connection, {}).get("peer", "")),
        frames=[frame_of(part, frame) for part, frame in frames],
        payload=list(_payload(recorded)),
        timeline=_timeline(recorded),
        neighbours=[_neighbour(number, record, number == recorded.number) for number, record in beside],
        fixture=fixture,
    )


def frame_of(part: str, exchange: Exchange) -> Frame:
    """Describes a frame byte by byte. part: request or reply."""
    data = exchange.record.data
    if exchange.record.kind is RecordKind.CALL:  # its message is shown as the payload
        return Frame(part=part, type=shown(exchange.name), size=len(data), hex="", fields=[], left_out=0, error="")
    described = describe(data[:_FRAME_BYTES], unknown="keep")
    spans = [span for span in described.spans if span.length or span.note]
    whole = len(data) <= _FRAME_BYTES
    return Frame(
        part=part,
        type=exchange.name,
        size=len(data),
        hex=data[:_SHOWN_BYTES].hex(),
        fields=[FrameField.of(span, name=span.field, value=_value(span.value)) for span in spans[:_MOST_FIELDS]],
        left_out=max(0, len(spans) - _MOST_FIELDS),
        error="" if described.error is None or not whole else shown(str(described.error)),
    )


def _value(value: Any) -> str:
    """Returns a field's value as text; truncates a long value."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return shown(text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}… ({len(text):,} characters)")


# --- payloads -----------------------------------------------------------------------------------------------------


def _payload(recorded: RecordedRequest) -> Iterator[Payload]:
    for part, exchange in (("request", recorded.request), ("reply", recorded.reply)):
        if exchange is None:
            continue
        if exchange.call is not None and (fields := exchange.call.fields) is not None:
            message = json.dumps(fields).encode()
            yield _shown(message, 0, len(message), part, "message")
        for kind, item in islice(_in_table(exchange.command), _MOST_EVENTS):
            yield _shown(item, 0, len(item), part, kind)
    data = _appended(recorded)
    if data is not None:
        yield from payloads(data, "request")
    reply = None if recorded.reply is None else recorded.reply.command
    if isinstance(reply, SegmentRead):
        yield from payloads(reply.data, "reply")


def _in_table(command: Any) -> Iterator[tuple[str, Buffer]]:
    """Yields the keys and values in a command about tables, in order, labelled "key" or "value"."""
    entries = getattr(command, "table_entries", None) or getattr(command, "entries", None)
    for entry in () if entries is None else entries.entries:
        yield from (("key", entry.key.data), ("value", entry.value.data))
    for key in getattr(command, "keys", ()):
        yield "key", key.data


def _appended(recorded: RecordedRequest) -> Buffer | None:
    """Returns the bytes that a request appends to its segment, as far as they are known; None for other requests."""
    command: Any = recorded.request.command
    if isinstance(command, ConditionalAppend):
        data = command.event.data
        return _HEADER.pack(0, len(data)) + bytes(data)
    if isinstance(command, ConditionalBlockEnd):
        return command.data
    if not isinstance(command, AppendBlockEnd):
        return None
    block = recorded.request.block
    return command.data if block is None else joined(cast("AppendBlock", block.command), command)


def payloads(data: Buffer, part: str = "") -> Iterator[Payload]:
    """Splits bytes of a segment into events. Yields the first events; the rest is one payload."""
    at, events, end = 0, 0, len(data)
    while end - at >= _HEADER.size and events < _MOST_EVENTS:
        kind, length = _HEADER.unpack_from(data, at)
        stop = at + _HEADER.size + length
        if kind != 0 or length < 0 or stop > end:
            break
        yield _shown(data, at + _HEADER.size, stop, part, "event")
        at, events = stop, events + 1
    if at < end:
        yield _shown(data, at, end, part, "more" if events == _MOST_EVENTS else "bytes")


def _shown(data: Buffer, start: int, stop: int, part: str, kind: str) -> Payload:
    view = memoryview(data)[start:stop]
    form, text = readable_form(view)
    raw = bytes(view[:_HEX_BYTES]).hex()
    return Payload(part=part, kind=kind, offset=start, size=stop - start, form=form, text=text, hex=raw)


def readable_form(data: Buffer) -> tuple[str, str]:
    """Returns the form and the text of bytes (at most the first 4 KiB): JSON or other text if they are UTF-8 without
    control characters, else hex.
    """
    head = bytes(memoryview(data)[:_EVENT_BYTES])
    whole = len(head) == len(data)
    text = readable(head, whole=whole)
    if text is None:
        return "hex", head.hex()
    if whole and text[:1] in ("{", "[") and max(map(text.count, "{[")) <= _MOST_NESTED:
        try:
            document = json.loads(text, object_pairs_hook=unique)
            pretty = shown(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))
        except (ValueError, RecursionError):
            return "text", text
        return ("json", pretty) if len(pretty) <= 8 * _EVENT_BYTES else ("text", text)
    return "text", text


# --- timeline and neighbours --------------------------------------------------------------------------------------


def _timeline(recorded: RecordedRequest) -> list[Moment]:
    received_ns = recorded.request.record.ts_ns
    moments: list[tuple[float, str]] = []
    if recorded.request.block is not None and recorded.request.block.record.ts_ns != received_ns:
        moments.append((recorded.request.block.record.ts_ns / 1e6, "events received"))
    moments.append((received_ns / 1e6, "received"))
    seen = recorded.known
    if seen is not None and seen.applied_s is not None:
        moments.append((max(seen.applied_s * 1e3, received_ns / 1e6), "applied"))
    if seen is not None and seen.refused_s is not None:
        moments.append((max(seen.refused_s * 1e3, received_ns / 1e6), "refused"))
    if recorded.reply is not None:
        moments.append((recorded.reply.record.ts_ns / 1e6, f"replied with {shown(recorded.reply.outcome)}"))
    moments.sort(key=lambda moment: moment[0])
    timeline = [Moment(at_ms=at, what=what) for at, what in moments]
    after = 1 + next(index for index, moment in enumerate(timeline) if moment.what == "received")
    timeline[after:after] = [Moment(at_ms=None, what=f"fault {shown(fault)}") for fault in recorded.faults]
    if recorded.reply is None:
        what = "given up: the client closed the connection" if recorded.stage == "given up" else "no reply so far"
        timeline.append(Moment(at_ms=None, what=what))
    return timeline


def _neighbour(number: int, exchange: Exchange, is_itself: bool) -> Neighbour:
    record = exchange.record
    is_request = record.direction is Direction.REQUEST and record.kind not in (RecordKind.OPEN, RecordKind.CLOSE)
    facts = unpack_data(record.data) or {} if record.kind in (RecordKind.OPEN, RecordKind.CLOSE) else {}
    about = (*exchange.segments, *exchange.streams) or tuple(f"{name} {value}" for name, value in facts.items())
    return Neighbour(
        number=number or None,
        at_ms=record.ts_ns / 1e6,
        direction=record.direction.name.lower(),
        type=shown(exchange.name),
        size=exchange.size,
        about=shown(", ".join(about)),
        opens=is_request and not isinstance(exchange.command, AppendBlock),
        itself=is_itself,
    )
