"""Stream positions as text: "head", "tail", a time, Pravega's text form of a stream cut, and Spark checkpoint offsets.

"earliest" and "latest" are Kafka's words for the head and the tail. A time is Unix ms, or ISO 8601 with a time zone.

A Spark offset is `{"0.#epoch.0": 1234}`: a segment's name within its stream, and the offset read so far. The same, as
JSON, is accepted as a cut. Pravega's text form is base64 of gzip of `0:SCOPE/STREAM:NUMBERS:EPOCHS:OFFSETS`, with
comma-separated lists.

Invariant: cuts round-trip, and are interchangeable with Pravega's client in both directions. Refused, with `CutError`:
other text, another stream's cut, a cut without segments. Follows `StreamCutImpl` and `ToStringUtils` (Pravega's
client).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from segstore.wire.names import MAX_INT32, segment_id, split_segment_id

Cut = dict[int, int]
"""Segment id → offset."""


class Moment(NamedTuple):
    """The position that the stream had reached when this time began."""

    unix_ms: int


Place = Literal["head", "tail"] | Moment | Cut
Offsets = dict[str, int]
"""A Spark offset: a segment's short name → offset."""

_WORDS: Final[Mapping[str, Literal["head", "tail"]]] = {
    "head": "head", "earliest": "head", "tail": "tail", "latest": "tail",
}  # fmt: skip
_TIME: Final = re.compile(r"[0-9]{1,15}|[0-9]{4}-[0-9]{2}-[0-9]{2}.*")
_SHORT: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.#epoch\.(0|[1-9][0-9]{0,9})")
_UNBOUNDED: Final = -1
_MOST_TEXT: Final = 16 << 20


class CutError(ValueError):
    """The text is not a position in this stream. Attribute: actual, its start."""

    def __init__(self, message: str, actual: str) -> None:
        super().__init__(message)
        self.actual = actual[:200]


def short_name(number: int) -> str:
    """Returns a segment's name within its stream."""
    epoch, index = split_segment_id(number)
    return f"{index}.#epoch.{epoch}"


def cut_of(offsets: Mapping[Any, Any]) -> Cut:
    """Converts a Spark offset to a cut. Raises CutError."""
    cut: Cut = {}
    for name, offset in offsets.items():
        found = _SHORT.fullmatch(name) if isinstance(name, str) else None
        if found is None or int(found[1]) > MAX_INT32 or int(found[2]) > MAX_INT32:
            raise CutError(f"{name!r} is not a stream segment: NUMBER.#epoch.EPOCH", str(name))
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
            raise CutError(f"{offset!r} is not an offset in {name}", str(offset))
        cut[segment_id(int(found[2]), int(found[1]))] = offset
    return cut


def offsets_of(cut: Mapping[int, int]) -> Offsets:
    """Converts a cut to a Spark offset, in order of ids."""
    return {short_name(number): cut[number] for number in sorted(cut)}


def parse_place(text: str, scope: str, stream: str) -> Place:
    """Parses the text of a position in the stream. Raises CutError."""
    text = text.strip()
    if word := _WORDS.get(text.lower()):
        return word
    if _TIME.fullmatch(text):
        return _moment(text)
    cut = _from_json(text) if text.startswith("{") else _from_pravega(text, f"{scope}/{stream}")
    if not cut:
        raise CutError("a stream cut has at least one segment", text)
    return cut


def _moment(text: str) -> Moment:
    if text.isdigit():
        return Moment(int(text))
    try:
        found = datetime.fromisoformat(text)
    except ValueError as cause:
        raise CutError(f"{text!r} is not a time: {cause}", text) from cause
    if found.tzinfo is None:
        raise CutError(f"{text!r} has no time zone, such as Z or +02:00", text)
    return Moment(max(0, int(found.timestamp() * 1000)))


def _from_json(text: str) -> Cut:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise CutError(f"this is not JSON: {cause}", text) from cause
    return cut_of(found)


def _from_pravega(text: str, name: str) -> Cut:
    try:
        packed = base64.b64decode(text, validate=True)
        unpacker = zlib.decompressobj(wbits=31)
        plain = unpacker.decompress(packed, _MOST_TEXT).decode()
        if not unpacker.eof:
            raise ValueError("it does not end")
    except (binascii.Error, zlib.error, ValueError) as cause:
        raise CutError(
            f'{text[:40]!r} is not a position in a stream: "head", "tail", a time, the text of a stream cut, or JSON',
            text,
        ) from cause
    parts = plain.split(":", 4)
    if len(parts) != 5 or parts[0] != "0":
        raise CutError(f"{plain[:80]!r} is not a stream cut", text)
    if parts[1] != name:
        raise CutError(f"this is a cut of {parts[1]}, not of {name}", text)
    try:
        numbers, epochs, offsets = ([int(each) for each in part.split(",")] for part in parts[2:])
        pairs = list(zip(numbers, epochs, offsets, strict=True))
        return {segment_id(epoch, number): _offset(offset) for number, epoch, offset in pairs}
    except ValueError as cause:
        raise CutError(f"{plain[:80]!r} is not a stream cut: {cause}", text) from cause


def _offset(offset: int) -> int:
    if offset == _UNBOUNDED:  # a segment that a reader has not started
        return 0
    if not 0 <= offset < 1 << 63:
        raise ValueError(f"{offset} is not an offset")
    return offset


def cut_text(scope: str, stream: str, cut: Mapping[int, int]) -> str:
    """Formats a cut as Pravega does. Raises ValueError for an empty one."""
    if not cut:
        raise ValueError("a stream cut has at least one segment")
    rows = [(*reversed(split_segment_id(each)), cut[each]) for each in sorted(cut)]
    numbers, epochs, offsets = (",".join(map(str, column)) for column in zip(*rows, strict=True))
    plain = f"0:{scope}/{stream}:{numbers}:{epochs}:{offsets}"
    return base64.b64encode(zlib.compress(plain.encode(), wbits=31)).decode()
