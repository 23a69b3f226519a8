"""Payloads: events taken out of their framing; for people, text and JSON as text, other bytes as hex.

`Payload` holds the parts that filters test: at most the first `MOST_SEARCHED` bytes.

Invariants: a text is one line without control characters, whatever the bytes; without `full`, time and size are
bounded, however long the payload. Nothing else is interpreted: serialized values stay as they are.
"""

from __future__ import annotations

import codecs
import json
import struct
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from segstore.wire.codec import HEADER_BYTES
from segstore.wire.commands import Event, Padding, PartialEvent
from segstore.wire.printable import printable
from segstore.wire.schema import FieldType, Nested, types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from segstore.wire.blocks import Append
    from segstore.wire.commands import AppendBlock, AppendBlockEnd
    from segstore.wire.schema import Buffer, Command

SHOWN_BYTES: Final = 96
"""Longer text is truncated unless `full` is set."""
SHOWN_PARTS: Final = 4
MOST_SEARCHED: Final = 1 << 20
"""Bytes of a payload that filters see: more than writers put into one append block."""

PartKind = Literal["event", "partial event", "padding", "data"]

_KINDS: Final[dict[int, PartKind]] = {Event.code: "event", PartialEvent.code: "partial event", Padding.code: "padding"}
_WHITE: Final = frozenset("\t\n\r")


class PayloadPart(NamedTuple):
    """A part of a payload. kind: "data" for bytes without framing. data: a view of the payload, without the header.

    size: in bytes, from the header; above the size of `data` if the rest is not in this payload, as at the end of a
    read.
    """

    kind: PartKind
    data: memoryview
    size: int


def payload_parts(data: Buffer) -> Iterator[PayloadPart]:
    """Yields the events in a payload of, for example, an append, an append block or a read; else the whole as data.

    The parts are views of `data`. A payload is a sequence of events if it begins with the header of a non-empty event,
    or of an empty event before such a header; other bytes after its events are data.
    """
    view, at = memoryview(data).cast("B"), 0
    while len(view) - at >= HEADER_BYTES:
        code, size = struct.unpack_from(">ii", view, at)
        if code not in _KINDS or size < 0 or (at == 0 and size == 0 and not _precedes_event(view)):
            break
        yield PayloadPart(_KINDS[code], view[at + HEADER_BYTES : at + HEADER_BYTES + size], size)
        at += HEADER_BYTES + size
    if at < len(view):
        yield PayloadPart("data", view[at:], len(view) - at)


def _precedes_event(view: memoryview) -> bool:
    """Whether a header with a length follows the first header; mere zeros would be headers without a length."""
    if len(view) < 2 * HEADER_BYTES:
        return False
    code, size = struct.unpack_from(">ii", view, HEADER_BYTES)
    return code in _KINDS and size > 0


class Payload:
    """A copy of the payload of a command or an append. size: in bytes."""

    __slots__ = ("_data", "_values", "size")

    def __init__(self, item: Command | Append | None = None, block: AppendBlock | None = None) -> None:
        data: Any = getattr(item, "data", None) if block is None else joined(block, item)  # type: ignore[arg-type]
        is_long = data is not None and len(data) > MOST_SEARCHED
        self._data = bytes(memoryview(data)[:MOST_SEARCHED] if is_long else data or b"")
        self._values = tuple(bytes(nested) for nested in _bounded(_nested(item))) if data is None else ()
        self.size = len(self._data) + sum(map(len, self._values))

    def parts(self) -> tuple[bytes, ...]:
        """The events, or the bytes without framing, and the keys and values; without a cut event that has no bytes."""
        parts = (part for part in payload_parts(self._data) if part.kind != "padding" and (part.data or not part.size))
        return (*(bytes(part.data) for part in parts), *self._values)

    def __repr__(self) -> str:
        return f"<{self.size} bytes>"


def joined(block: AppendBlock, end: AppendBlockEnd) -> Buffer:
    """The data of an append: the whole events of its block, and the event that its end completes."""
    data, whole = memoryview(block.data), end.size_of_whole_events
    if not 0 <= whole <= len(data) - HEADER_BYTES:
        return data[: max(whole, 0)]
    code, size = struct.unpack_from(">ii", data, whole)
    if code != PartialEvent.code:
        return data[:whole]
    start = whole + HEADER_BYTES
    return b"".join((data[:whole], data[start : start + max(size, 0)], end.data))


def _nested(item: Any) -> Iterator[Buffer]:
    """Yields the fields `data` within fields of a command, for example of keys and values."""
    for name in item.__struct_fields__ if isinstance(item, msgspec.Struct) else ():
        value = getattr(item, name)
        for element in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(element, msgspec.Struct):
                data = getattr(element, "data", None)
                if data is not None:
                    yield data
                yield from _nested(element)


def _bounded(values: Iterable[Buffer]) -> Iterator[Buffer]:
    left = MOST_SEARCHED
    for value in values:
        yield memoryview(value)[:left]
        left -= len(value)
        if left <= 0:
            return


NO_PAYLOAD: Final = Payload()


def has_payload(nodes: Iterable[FieldType]) -> bool:
    """Whether commands with these fields may have a payload."""
    for node in nodes:
        if node.name == "data" and isinstance(node, types.Blob | types.Rest | types.SizedData):
            return True
        match node:
            case Nested(parts=inside) if has_payload(inside):
                return True
            case types.Counted(element=element) if has_payload((element,)):
                return True
    return False


def payload_text(data: Buffer, *, full: bool = False) -> str:
    """Returns a payload as one line: `"text"`, `{"json": 1}`, `0x00ff…`, or `[event "one" event "two"]` for events.

    full: show all events and all their bytes, instead of the first `SHOWN_PARTS` and `SHOWN_BYTES` with the totals.
    """
    parts = payload_parts(data)
    shown = list(parts if full else islice(parts, SHOWN_PARTS))
    if [part.kind for part in shown] in ([], ["data"]):
        return _text(memoryview(data).cast("B"), full)
    more = " …" if next(parts, None) is not None else ""
    return f"[{' '.join(_part(part, full) for part in shown)}{more}]"


def readable(data: bytes, *, whole: bool) -> str | None:
    """Returns bytes as text if they are UTF-8 without control characters other than white space; else None.

    whole: whether these are all bytes; the first bytes of a text may end within a character.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or all(char.isprintable() or char in _WHITE for char in text) else None


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
