"""Sixteen commands read and written by hand with `struct`: the codec as somebody would write it without a schema.

The yardstick for the generated codec, so it keeps the whole contract and not only the sunny part of it: every length is
checked against the end of the frame, modified UTF-8 beyond ASCII works, older frames without their tails are read,
payloads are views, a frame that cannot be written is refused. It reads at (buffer, position, end), so it would serve a
shared receive buffer. It is written for speed in the ways that come to hand: fixed fields of one run are one `Struct`
with the length of the string behind them, UUIDs skip the checks of their constructor. It keeps no state between calls.

Its errors name the command but not field and offset. Nothing here looks at `segstore.wire.schema.schema` or at what is
generated from it; only the value classes and the slow half of modified UTF-8 are shared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID, SafeUUID

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    BadField,
    Buffer,
    Command,
    CreateSegment,
    DataAppended,
    FrameTooLarge,
    Hello,
    KeepAlive,
    NoSuchSegment,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    TableEntries,
    TableEntry,
    TableKey,
    TableValue,
    Truncated,
    UnknownCommand,
    UpdateSegmentAttribute,
    UpdateTableEntries,
)
from segstore.wire.schema import decode_mutf8, encode_mutf8

__all__ = ["READERS", "WRITERS", "decode", "encode"]

MAX_FRAME_BYTES: Final = 0x00FF_FFFF
NO_VERSION: Final = -(1 << 63)

_unpack_header = struct.Struct(">ii").unpack_from
_unpack_i = struct.Struct(">i").unpack_from
_unpack_q = struct.Struct(">q").unpack_from
_unpack_h = struct.Struct(">H").unpack_from
_unpack_ii = struct.Struct(">ii").unpack_from

_new = object.__new__
_set = object.__setattr__
_from_bytes = int.from_bytes
_UNSAFE = SafeUUID.unknown


# --- reading ----------------------------------------------------------------------------------------------------
# A read of fixed fields may run past `end` into what follows in the buffer; the check that comes next refuses it.


def _text(data: Any, start: int, stop: int, end: int) -> str:
    if stop > end:
        raise Truncated(f"a string of {stop - start} bytes passes the end of the frame")
    raw = data[start:stop]
    try:
        return raw.decode("ascii")  # type: ignore[no-any-return]  # `data` is bytes or a bytearray
    except UnicodeDecodeError:
        return _beyond_ascii(bytes(raw))


def _beyond_ascii(raw: bytes) -> str:
    try:
        return decode_mutf8(raw)
    except ValueError as cause:
        raise BadField(str(cause)) from cause


def _uuid(raw: bytes) -> UUID:
    value = _new(UUID)
    _set(value, "int", _from_bytes(raw, "big"))
    _set(value, "is_safe", _UNSAFE)
    return value


def _check(position: int, end: int) -> None:
    if position > end:
        raise Truncated(f"a field ends {position - end} bytes behind the end of the frame")


def _payload(data: Any, start: int, size: int, end: int) -> memoryview:
    if size < 0:
        raise BadField(f"length {size} is negative")
    if start + size > end:
        raise Truncated(f"{size} bytes of data pass the end of the frame")
    return memoryview(data)[start : start + size]


_hello = struct.Struct(">ii").unpack_from


def _read_hello(data: Any, at: int, end: int) -> Hello:
    _check(at + 8, end)
    high, low = _hello(data, at)
    return Hello(high, low)


def _read_keep_alive(data: Any, at: int, end: int) -> KeepAlive:
    return KeepAlive()


_setup_append = struct.Struct(">q16sH").unpack_from


def _read_setup_append(data: Any, at: int, end: int) -> SetupAppend:
    request_id, writer, size = _setup_append(data, at)
    stop = at + 26 + size
    segment = _text(data, at + 26, stop, end)
    (size,) = _unpack_h(data, stop)
    return SetupAppend(request_id, _uuid(writer), segment, _text(data, stop + 2, stop + 2 + size, end))


_request_text = struct.Struct(">qH").unpack_from
_writer_number = struct.Struct(">16sq").unpack_from


def _read_append_setup(data: Any, at: int, end: int) -> AppendSetup:
    request_id, size = _request_text(data, at)
    stop = at + 10 + size
    segment = _text(data, at + 10, stop, end)
    _check(stop + 24, end)
    writer, number = _writer_number(data, stop)
    return AppendSetup(request_id, segment, _uuid(writer), number)


def _read_append_block(data: Any, at: int, end: int) -> AppendBlock:
    _check(at + 16, end)
    return AppendBlock(_uuid(bytes(data[at : at + 16])), memoryview(data)[at + 16 : end])


_block_end = struct.Struct(">16sii").unpack_from
_block_numbers = struct.Struct(">iq").unpack_from


def _read_append_block_end(data: Any, at: int, end: int) -> AppendBlockEnd:
    writer, whole, size = _block_end(data, at)
    at += 24
    payload: Buffer = b""
    if size > 0:
        payload = _payload(data, at, size, end)
        at += size
    _check(at + 12, end)
    events, number = _block_numbers(data, at)
    at += 12
    request_id = _unpack_q(data, at)[0] if end - at >= 8 else -1
    return AppendBlockEnd(_uuid(writer), whole, payload, events, number, request_id)


_acknowledged = struct.Struct(">16sqqqq").unpack_from
_acknowledged_short = struct.Struct(">16sq").unpack_from


def _read_data_appended(data: Any, at: int, end: int) -> DataAppended:
    if end - at >= 48:
        writer, number, previous, request_id, offset = _acknowledged(data, at)
        return DataAppended(request_id, _uuid(writer), number, previous, offset)
    _check(at + 24, end)
    writer, number = _acknowledged_short(data, at)
    previous = _unpack_q(data, at + 24)[0] if end - at >= 32 else -1
    request_id = _unpack_q(data, at + 32)[0] if end - at >= 40 else -1
    return DataAppended(request_id, _uuid(writer), number, previous, -1)


_offset_length = struct.Struct(">qiH").unpack_from


def _read_read_segment(data: Any, at: int, end: int) -> ReadSegment:
    (size,) = _unpack_h(data, at)
    stop = at + 2 + size
    segment = _text(data, at + 2, stop, end)
    offset, length, size = _offset_length(data, stop)
    at = stop + 14
    stop = at + size
    token = _text(data, at, stop, end)
    request_id = _unpack_q(data, stop)[0] if end - stop >= 8 else -1
    return ReadSegment(segment, offset, length, token, request_id)


_read_answer = struct.Struct(">q??i").unpack_from


def _read_segment_read(data: Any, at: int, end: int) -> SegmentRead:
    (size,) = _unpack_h(data, at)
    stop = at + 2 + size
    segment = _text(data, at + 2, stop, end)
    _check(stop + 14, end)
    offset, at_tail, at_end, size = _read_answer(data, stop)
    payload = _payload(data, stop + 14, size, end)
    stop += 14 + size
    request_id = _unpack_q(data, stop)[0] if end - stop >= 8 else -1
    return SegmentRead(segment, offset, at_tail, at_end, payload, request_id)


_rate_scale = struct.Struct(">ibH").unpack_from


def _read_create_segment(data: Any, at: int, end: int) -> CreateSegment:
    request_id, size = _request_text(data, at)
    stop = at + 10 + size
    segment = _text(data, at + 10, stop, end)
    rate, scale, size = _rate_scale(data, stop)
    at = stop + 7
    stop = at + size
    token = _text(data, at, stop, end)
    rollover = _unpack_q(data, stop)[0] if end - stop >= 8 else 0
    return CreateSegment(request_id, segment, scale, rate, token, rollover)


def _read_segment_created(data: Any, at: int, end: int) -> SegmentCreated:
    request_id, size = _request_text(data, at)
    return SegmentCreated(request_id, _text(data, at + 10, at + 10 + size, end))


_info = struct.Struct(">???qqq").unpack_from
_info_short = struct.Struct(">???qq").unpack_from


def _read_stream_segment_info(data: Any, at: int, end: int) -> StreamSegmentInfo:
    request_id, size = _request_text(data, at)
    stop = at + 10 + size
    segment = _text(data, at + 10, stop, end)
    if end - stop >= 27:
        exists, is_sealed, deleted, modified, write_offset, start_offset = _info(data, stop)
    else:
        _check(stop + 19, end)
        exists, is_sealed, deleted, modified, write_offset = _info_short(data, stop)
        start_offset = 0
    return StreamSegmentInfo(request_id, segment, exists, is_sealed, deleted, modified, write_offset, start_offset)


_attribute_update = struct.Struct(">16sqqH").unpack_from


def _read_update_segment_attribute(data: Any, at: int, end: int) -> UpdateSegmentAttribute:
    request_id, size = _request_text(data, at)
    stop = at + 10 + size
    segment = _text(data, at + 10, stop, end)
    attribute, new, expected, size = _attribute_update(data, stop)
    at = stop + 34
    return UpdateSegmentAttribute(request_id, segment, _uuid(attribute), new, expected, _text(data, at, at + size, end))


def _read_no_such_segment(data: Any, at: int, end: int) -> NoSuchSegment:
    request_id, size = _request_text(data, at)
    stop = at + 10 + size
    segment = _text(data, at + 10, stop, end)
    trace, offset = "", -1
    if stop < end:
        (size,) = _unpack_h(data, stop)
        at = stop + 2
        stop = at + size
        trace = _text(data, at, stop, end)
        if end - stop >= 8:
            (offset,) = _unpack_q(data, stop)
    return NoSuchSegment(request_id, segment, trace, offset)


def _read_update_table_entries(data: Any, at: int, end: int) -> UpdateTableEntries:
    request_id, size = _request_text(data, at)
    stop = at + 10 + size
    segment = _text(data, at + 10, stop, end)
    (size,) = _unpack_h(data, stop)
    at = stop + 2
    stop = at + size
    token = _text(data, at, stop, end)
    _check(stop + 4, end)
    (count,) = _unpack_i(data, stop)
    at = stop + 4
    if count * 16 > end - at:
        raise Truncated(f"{count} entries pass the end of the frame")
    view = memoryview(data)
    entries = []
    for _ in range(count):
        total, size = _unpack_ii(data, at)
        start = at + 8
        if size == 0:
            key = TableKey(b"", NO_VERSION)
            at = start
        else:
            stop = start + size
            if size < 0 or total > end - at or stop + 8 > end:
                raise Truncated(f"a key of {size} bytes passes the end of the frame")
            key = TableKey(view[start:stop], _unpack_q(data, stop)[0])
            at = stop + 8
        _check(at + 8, end)
        total, size = _unpack_ii(data, at)
        start = at + 8
        if size == 0:
            value = TableValue(b"")
            at = start
        else:
            stop = start + size
            if size < 0 or total > end - at or stop > end:
                raise Truncated(f"a value of {size} bytes passes the end of the frame")
            value = TableValue(view[start:stop])
            at = stop
        entries.append(TableEntry(key, value))
    offset = -1
    if at < end:
        _check(at + 8, end)
        (offset,) = _unpack_q(data, at)
    return UpdateTableEntries(request_id, segment, token, TableEntries(tuple(entries)), offset)


READERS: Final[dict[int, Callable[[Any, int, int], Command]]] = {
    -127: _read_hello,
    1: _read_setup_append,
    2: _read_append_setup,
    3: _read_append_block,
    4: _read_append_block_end,
    7: _read_data_appended,
    9: _read_read_segment,
    10: _read_segment_read,
    12: _read_stream_segment_info,
    20: _read_create_segment,
    21: _read_segment_created,
    36: _read_update_segment_attribute,
    53: _read_no_such_segment,
    74: _read_update_table_entries,
    100: _read_keep_alive,
}


def decode(frame: bytes | bytearray) -> Command:
    """Reads one whole frame, header included; payloads are views of it. Raises WireError."""
    end = len(frame)
    if end < 8:
        raise Truncated("a header has 8 bytes", limit=end, actual=8)
    code, length = _unpack_header(frame)
    if length != end - 8:
        raise Truncated(f"the header announces {length} bytes but {end - 8} follow", code=code)
    read = READERS.get(code)
    if read is None:
        raise UnknownCommand("no command has this type code", code=code)
    try:
        return read(frame, 8, end)
    except struct.error as cause:
        raise Truncated("a field passes the end of the frame", code=code) from cause


# --- writing ----------------------------------------------------------------------------------------------------


def _encode_text(text: str) -> bytes:
    data = text.encode("ascii") if text.isascii() and "\0" not in text else encode_mutf8(text)
    if len(data) > 0xFFFF:
        raise BadField(f"{len(data)} bytes exceed the 65535 that a string may have", limit=0xFFFF, actual=len(data))
    return data


def _size(data: Buffer) -> int:
    size = data.nbytes if type(data) is memoryview else len(data)
    if size > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"{size} bytes of data fit no frame", limit=MAX_FRAME_BYTES, actual=size)
    return size


_pack_h = struct.Struct(">H").pack
_pack_q = struct.Struct(">q").pack

_KEEP_ALIVE: Final = struct.pack(">ii", 100, 0)
_pack_hello = struct.Struct(">iiii").pack


def _write_hello(command: Hello) -> bytes:
    return _pack_hello(-127, 8, command.high_version, command.low_version)


def _write_keep_alive(command: KeepAlive) -> bytes:
    return _KEEP_ALIVE


_pack_setup_append = struct.Struct(">iiq16sH").pack


def _write_setup_append(command: SetupAppend) -> bytes:
    segment = _encode_text(command.segment)
    token = _encode_text(command.delegation_token)
    head = _pack_setup_append(
        1, 28 + len(segment) + len(token), command.request_id, command.writer_id.int.to_bytes(16, "big"), len(segment)
    )
    return head + segment + _pack_h(len(token)) + token


_pack_request_text = struct.Struct(">iiqH").pack
_pack_writer_number = struct.Struct(">16sq").pack


def _write_append_setup(command: AppendSetup) -> bytes:
    segment = _encode_text(command.segment)
    return (
        _pack_request_text(2, 34 + len(segment), command.request_id, len(segment))
        + segment
        + _pack_writer_number(command.writer_id.int.to_bytes(16, "big"), command.last_event_number)
    )


_pack_append_block = struct.Struct(">ii16s").pack


def _write_append_block(command: AppendBlock) -> bytes:
    data = command.data
    return _pack_append_block(3, 16 + _size(data), command.writer_id.int.to_bytes(16, "big")) + data


_pack_block_end = struct.Struct(">ii16sii").pack
_pack_block_numbers = struct.Struct(">iqq").pack


def _write_append_block_end(command: AppendBlockEnd) -> bytes:
    data = command.data
    size = _size(data)
    head = _pack_block_end(4, 44 + size, command.writer_id.int.to_bytes(16, "big"), command.size_of_whole_events, size)
    numbers = _pack_block_numbers(command.num_events, command.last_event_number, command.request_id)
    return head + data + numbers if size else head + numbers


_pack_acknowledged = struct.Struct(">ii16sqqqq").pack


def _write_data_appended(command: DataAppended) -> bytes:
    return _pack_acknowledged(
        7,
        48,
        command.writer_id.int.to_bytes(16, "big"),
        command.event_number,
        command.previous_event_number,
        command.request_id,
        command.current_segment_write_offset,
    )


_pack_text_head = struct.Struct(">iiH").pack
_pack_offset_length = struct.Struct(">qiH").pack


def _write_read_segment(command: ReadSegment) -> bytes:
    segment = _encode_text(command.segment)
    token = _encode_text(command.delegation_token)
    return b"".join(
        (
            _pack_text_head(9, 24 + len(segment) + len(token), len(segment)),
            segment,
            _pack_offset_length(command.offset, command.suggested_length, len(token)),
            token,
            _pack_q(command.request_id),
        )
    )


_pack_read_answer = struct.Struct(">q??i").pack


def _write_segment_read(command: SegmentRead) -> bytes:
    segment = _encode_text(command.segment)
    data = command.data
    size = _size(data)
    return b"".join(
        (
            _pack_text_head(10, 24 + len(segment) + size, len(segment)),
            segment,
            _pack_read_answer(command.offset, command.at_tail, command.end_of_segment, size),
            data,
            _pack_q(command.request_id),
        )
    )


_pack_rate_scale = struct.Struct(">ibH").pack


def _write_create_segment(command: CreateSegment) -> bytes:
    segment = _encode_text(command.segment)
    token = _encode_text(command.delegation_token)
    return b"".join(
        (
            _pack_request_text(20, 25 + len(segment) + len(token), command.request_id, len(segment)),
            segment,
            _pack_rate_scale(command.target_rate, command.scale_type, len(token)),
            token,
            _pack_q(command.rollover_size_bytes),
        )
    )


def _write_segment_created(command: SegmentCreated) -> bytes:
    segment = _encode_text(command.segment)
    return _pack_request_text(21, 10 + len(segment), command.request_id, len(segment)) + segment


_pack_info = struct.Struct(">???qqq").pack


def _write_stream_segment_info(command: StreamSegmentInfo) -> bytes:
    segment = _encode_text(command.segment_name)
    return (
        _pack_request_text(12, 37 + len(segment), command.request_id, len(segment))
        + segment
        + _pack_info(
            command.exists,
            command.is_sealed,
            command.is_deleted,
            command.last_modified,
            command.write_offset,
            command.start_offset,
        )
    )


_pack_attribute_update = struct.Struct(">16sqqH").pack


def _write_update_segment_attribute(command: UpdateSegmentAttribute) -> bytes:
    segment = _encode_text(command.segment_name)
    token = _encode_text(command.delegation_token)
    return (
        _pack_request_text(36, 44 + len(segment) + len(token), command.request_id, len(segment))
        + segment
        + _pack_attribute_update(
            command.attribute_id.int.to_bytes(16, "big"), command.new_value, command.expected_value, len(token)
        )
        + token
    )


def _write_no_such_segment(command: NoSuchSegment) -> bytes:
    segment = _encode_text(command.segment)
    trace = _encode_text(command.server_stack_trace)
    return b"".join(
        (
            _pack_request_text(53, 20 + len(segment) + len(trace), command.request_id, len(segment)),
            segment,
            _pack_h(len(trace)),
            trace,
            _pack_q(command.offset),
        )
    )


_pack_i = struct.Struct(">i").pack
_pack_ii = struct.Struct(">ii").pack
_pack_version_value = struct.Struct(">qii").pack


def _write_update_table_entries(command: UpdateTableEntries) -> bytes:
    segment = _encode_text(command.segment)
    token = _encode_text(command.delegation_token)
    entries = command.table_entries.entries
    pieces: list[Buffer] = [b"", segment, _pack_h(len(token)), token, _pack_i(len(entries))]
    length = 24 + len(segment) + len(token)
    for entry in entries:
        key, value = entry.key.data, entry.value.data
        key_size, value_size = _size(key), _size(value)
        if key_size:
            pieces += (
                _pack_ii(12 + key_size, key_size),
                key,
                _pack_version_value(entry.key.key_version, 4 + value_size, value_size),
                value,
            )
            length += 24 + key_size + value_size
        else:
            pieces += (_pack_ii(12, 0), _pack_ii(4 + value_size, value_size), value)
            length += 16 + value_size
    pieces.append(_pack_q(command.table_segment_offset))
    pieces[0] = _pack_request_text(74, length, command.request_id, len(segment))
    return b"".join(pieces)


WRITERS: Final[dict[type[Command], Callable[[Any], bytes]]] = {
    Hello: _write_hello,
    SetupAppend: _write_setup_append,
    AppendSetup: _write_append_setup,
    AppendBlock: _write_append_block,
    AppendBlockEnd: _write_append_block_end,
    DataAppended: _write_data_appended,
    ReadSegment: _write_read_segment,
    SegmentRead: _write_segment_read,
    StreamSegmentInfo: _write_stream_segment_info,
    CreateSegment: _write_create_segment,
    SegmentCreated: _write_segment_created,
    UpdateSegmentAttribute: _write_update_segment_attribute,
    NoSuchSegment: _write_no_such_segment,
    UpdateTableEntries: _write_update_table_entries,
    KeepAlive: _write_keep_alive,
}


def encode(command: Command) -> bytes:
    """The frame of a command, header included. Raises WireError."""
    write = WRITERS.get(type(command))
    if write is None:
        raise TypeError(f"{type(command).__name__} is not one of the commands written by hand")
    try:
        frame = write(command)
    except (struct.error, TypeError, AttributeError) as cause:
        raise BadField(str(cause), type_name=command.type_name) from cause
    if len(frame) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"a frame of {len(frame)} bytes is too long", limit=MAX_FRAME_BYTES, actual=len(frame))
    return frame
