"""Entries of a reader group's table as Pravega's clients in Rust and Python write them, for what reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from segstore.wire.names import SegmentName
from segstore.wire.reader_groups.table import Pairs

__all__ = [
    "cbor_encode",
    "encode_key",
    "encode_offset",
    "encode_offsets",
    "encode_predecessors",
    "encode_streams",
    "encode_value",
]


def _head(kind: int, number: int) -> bytes:
    if number < 24:
        return bytes([kind << 5 | number])
    size, code = next((size, code) for size, code in ((1, 24), (2, 25), (4, 26), (8, 27)) if number < 1 << 8 * size)
    return bytes([kind << 5 | code]) + number.to_bytes(size)


def cbor_encode(value: Any) -> bytes:
    """Integers, text, bytes, None, booleans, lists, dicts and `Pairs`, as serde_cbor does."""
    match value:
        case bool() | None:
            return bytes([7 << 5 | {False: 20, True: 21, None: 22}[value]])
        case int():
            return _head(0, value) if value >= 0 else _head(1, -1 - value)
        case str():
            return _head(3, len(value.encode())) + value.encode()
        case bytes():
            return _head(2, len(value)) + value
        case Pairs() | dict():
            pairs = value.items() if isinstance(value, dict) else value
            return _head(5, len(value)) + b"".join(cbor_encode(key) + cbor_encode(each) for key, each in pairs)
        case _:
            return _head(4, len(value)) + b"".join(map(cbor_encode, value))


def encode_key(outer: str, inner: str | None) -> bytes:
    text = f"{len(outer.encode()):02}{outer}"
    return cbor_encode(text if inner is None else f"{text}/{inner}")


def encode_value(kind: str, data: bytes) -> bytes:
    return cbor_encode({"type_id": kind, "data": list(data)})


def encode_offset(offset: int) -> bytes:
    return cbor_encode({"read": offset})


def encode_offsets(offsets: Mapping[str, int]) -> bytes:
    return cbor_encode(Pairs((_segment(name), {"read": offset}) for name, offset in offsets.items()))


def encode_predecessors(segment_ids: Sequence[int]) -> bytes:
    return cbor_encode([{"number": each, "tx_id": None} for each in segment_ids])


def encode_streams(*streams: tuple[str, str]) -> bytes:
    """The configuration of a group that begins at the heads of its streams."""
    fields = {
        "group_refresh_time_millis": 3000,
        "starting_stream_cuts": Pairs((_stream(*each), "Unbounded") for each in streams),
        "ending_stream_cuts": {},
    }
    return cbor_encode({"V1": fields})


def _segment(name: str) -> Pairs:
    parsed = SegmentName.parse(name)
    number = Pairs((("number", parsed.segment_id), ("tx_id", None)))
    return Pairs((*_stream(parsed.scope or "", parsed.stream or ""), ("segment", number)))


def _stream(scope: str, stream: str) -> Pairs:
    return Pairs((("scope", Pairs((("name", scope),))), ("stream", Pairs((("name", stream),)))))
