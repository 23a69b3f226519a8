"""Byte streams: write, read, seek, truncate."""

from __future__ import annotations

import hashlib
from typing import Any

from common import attempt, manager


def life(uri: str) -> dict[str, Any]:
    made = manager(uri, "a", b=1)
    stream = made.create_byte_stream("a", "b")
    buffer = bytearray(5)

    def read() -> list[Any]:
        got = stream.readinto(buffer)
        return [got, bytes(buffer[:got]).decode()]

    result: dict[str, Any] = {"written": stream.write(b"hello world")}
    stream.flush()
    result["read"] = read()
    result["told"] = stream.tell()
    result["sought"] = [stream.seek(6, 0), *read(), stream.seek(-5, 1), stream.seek(-4, 2), *read()]
    result["refused"] = [attempt(lambda: stream.seek(-100, 2)), attempt(lambda: stream.seek(0, 9))]
    result["seekable"] = stream.seekable()
    result["ends"] = [stream.current_head_offset(), stream.current_tail_offset()]
    stream.truncate(6)
    result["ends after truncation"] = [stream.current_head_offset(), stream.current_tail_offset()]
    stream.seek(0, 0)
    result["before the head"] = attempt(read)
    stream.seek(6, 0)
    result["from the head"] = read()
    result["beyond the tail"] = attempt(lambda: stream.truncate(1000))
    second = made.create_byte_stream("a", "b")
    second.write(b"x")
    result["second writer"] = attempt(second.flush)
    return result


def large(uri: str, size: int) -> dict[str, Any]:
    """More than goes into one frame, and back."""
    made = manager(uri, "a", large=1)
    stream = made.create_byte_stream("a", "large")
    data = hashlib.shake_128(b"large").digest(size)
    written = 0
    while written < size:
        written += stream.write(data[written : written + 1_000_000])
    stream.flush()
    tail = stream.current_tail_offset()
    buffer, found = bytearray(700_000), bytearray()
    while len(found) < size:
        got = stream.readinto(buffer)
        if not got:
            break
        found += buffer[:got]
    return {"tail": tail, "same": bytes(found) == data}


def write(uri: str, size: int) -> int:
    """Bytes into a new stream, for another client to read; the tail after it."""
    made = manager(uri, "a", bytes=1)
    stream = made.create_byte_stream("a", "bytes")
    data = hashlib.shake_128(b"bytes").digest(size)
    written = 0
    while written < size:
        written += stream.write(data[written : written + 300_000])
    stream.flush()
    tail: int = stream.current_tail_offset()
    return tail


def read(uri: str, size: int) -> bool:
    """What another client wrote; whether it is the same."""
    made = manager(uri)  # without a name it would be freed, and its threads with it
    stream = made.create_byte_stream("a", "bytes")
    buffer, found = bytearray(700_000), bytearray()
    while len(found) < size and (got := stream.readinto(buffer)):
        found += buffer[:got]
    return bytes(found) == hashlib.shake_128(b"bytes").digest(size)
