"""Payloads for people: events taken out of their framing, text and JSON as text, other bytes as hex.

Invariants: a text is one line without control characters, whatever the bytes; without `full`, time and size are
bounded, however long the payload. Nothing is interpreted beyond that: what applications serialized stays as it is.
"""

from __future__ import annotations

import codecs
import json
import struct
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from segstore.wire.codec import HEADER_BYTES
from segstore.wire.commands import Event, Padding, PartialEvent
from segstore.wire.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segstore.wire.schema import Buffer

SHOWN_BYTES: Final = 96
"""Bytes of a text that are shown unless it is to be shown in full."""
SHOWN_PARTS: Final = 4

PartKind = Literal["event", "partial event", "padding", "data"]

_KINDS: Final[dict[int, PartKind]] = {Event.code: "event", PartialEvent.code: "partial event", Padding.code: "padding"}
_WHITE: Final = frozenset("\t\n\r")


class PayloadPart(NamedTuple):
    """A part of a payload. kind: "data" for bytes without framing. data: a view of the payload, without the header.

    size: bytes that the header announces; more than those of `data` if the rest is not in this payload, as at the end
    of a read.
    """

    kind: PartKind
    data: memoryview
    size: int


def payload_parts(data: Buffer) -> Iterator[PayloadPart]:
    """Yields the events in a payload, such as that of an append, an append block or a read; else the whole as data.

    The parts are views of `data`. A payload is a sequence of events if its first bytes are the header of one that has a
    length; bytes after its events that are none are data.
    """
    view, at = memoryview(data).cast("B"), 0
    while len(view) - at >= HEADER_BYTES:
        code, size = struct.unpack_from(">ii", view, at)
        # Zeros would be events without a length.
        if code not in _KINDS or size < 0 or (at == 0 and size == 0):
            break
        yield PayloadPart(_KINDS[code], view[at + HEADER_BYTES : at + HEADER_BYTES + size], size)
        at += HEADER_BYTES + size
    if at < len(view):
        yield PayloadPart("data", view[at:], len(view) - at)


def payload_text(data: Buffer, *, full: bool = False) -> str:
    """Returns a payload as one line: `"text"`, `{"json": 1}`, `0x00ff…`, or `[event "one" event "two"]` for events.

    full: show all events and all bytes of each, instead of the first `SHOWN_PARTS` and `SHOWN_BYTES`, with what they
    are of.
    """
    parts = payload_parts(data)
    shown = list(parts if full else islice(parts, SHOWN_PARTS))
    if [each.kind for each in shown] in ([], ["data"]):
        return _text(memoryview(data).cast("B"), full)
    said = [_part(each, full) for each in shown]
    left = sum(1 for _ in islice(parts, 1))
    return f"[{' '.join(said)}{' …' if left else ''}]"


def readable(data: bytes, *, whole: bool) -> str | None:
    """Returns bytes as text if they are UTF-8 without control characters other than white space; else None.

    whole: whether these are all bytes; the first bytes of a text may end within a character.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or all(each.isprintable() or each in _WHITE for each in text) else None


def _part(part: PayloadPart, full: bool) -> str:
    if part.kind == "padding":
        return f"padding of {part.size} bytes"
    cut = f" ({len(part.data)} of {part.size} bytes)" if len(part.data) < part.size else ""
    return f"{part.kind} {_text(part.data, full)}{cut}"


def _text(data: memoryview, full: bool) -> str:
    head = bytes(data if full else data[:SHOWN_BYTES])
    whole = len(head) == len(data)
    more = "" if whole else f"… ({len(data)} bytes)"
    text = readable(head, whole=whole)
    if text is None:
        return f"0x{head.hex()}{more}"
    said = text if text.startswith(("{", "[")) else json.dumps(text, ensure_ascii=False)
    return printable(said) + more
