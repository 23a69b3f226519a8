"""Stream positions as text: "head", "tail", a time, Pravega's text form of a stream cut, and Spark checkpoint offsets.

"earliest" and "latest" are Kafka's words for the head and the tail. A time is Unix ms, or ISO 8601 with a time zone.

A Spark offset is `{"0.#epoch.0": 1234}`: a segment's name within its stream, and the offset read so far. The same, as
JSON, is accepted as a cut.

Invariant: cuts round-trip. Refused, with `CutError`: other text, another stream's cut, a cut without segments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from segstore.client import CutError, StreamCut
from segstore.wire.names import MAX_INT32, segment_id, split_segment_id
from segstore.wire.validation import DuplicateKey, unique

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


def short_name(number: int) -> str:
    """Returns a segment's name within its stream."""
    epoch, index = split_segment_id(number)
    return f"{index}.#epoch.{epoch}"


def cut_of(offsets: Mapping[Any, Any]) -> Cut:
    """Converts a Spark offset to a cut. Raises CutError."""
    cut: Cut = {}
    for name, offset in offsets.items():
        match = _SHORT.fullmatch(name) if isinstance(name, str) else None
        if match is None or int(match[1]) > MAX_INT32 or int(match[2]) > MAX_INT32:
            raise CutError(f"{name!r} is not a stream segment: NUMBER.#epoch.EPOCH", str(name))
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 1 << 63:
            raise CutError(f"{offset!r} is not an offset in {name}", str(offset))
        cut[segment_id(int(match[2]), int(match[1]))] = offset
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
    cut = _from_json(text) if text.startswith("{") else _from_pravega(text, scope, stream)
    if not cut:
        raise CutError("a stream cut has at least one segment", text)
    return cut


def _moment(text: str) -> Moment:
    if text.isdigit():
        return Moment(int(text))
    try:
        time = datetime.fromisoformat(text)
    except ValueError as cause:
        raise CutError(f"{text!r} is not a time: {cause}", text) from cause
    if time.tzinfo is None:
        raise CutError(f"{text!r} has no time zone, such as Z or +02:00", text)
    return Moment(max(0, int(time.timestamp() * 1000)))


def _from_json(text: str) -> Cut:
    try:
        offsets = json.loads(text, object_pairs_hook=unique)
    except DuplicateKey as cause:
        raise CutError(str(cause), text) from cause
    except (ValueError, RecursionError) as cause:
        raise CutError(f"this is not JSON: {cause}", text) from cause
    return cut_of(offsets)


def _from_pravega(text: str, scope: str, stream: str) -> Cut:
    try:
        cut = StreamCut.from_text(text)
    except CutError as cause:
        raise CutError(
            f'{text[:40]!r} is not a position in a stream: "head", "tail", a time, the text of a stream cut, or JSON '
            f"({cause})",
            text,
        ) from cause
    cut.check(scope, stream)
    return dict(cut)
