"""Describes a frame byte by byte, with the field that each byte belongs to.

`describe` walks the same fields as the code generators and never fails: a malformed frame is described as far as it
can be read, followed by the error that `decode` raises for it. `lines` formats a description as text, `summary` a
command as one line.

Invariant: the spans of a frame are in order and cover it without gaps; if the frame decodes, their values are the
command's. Delegation tokens are withheld, as text and as bytes, unless requested.
"""

from __future__ import annotations

import enum
import json
import struct
import uuid
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from segstore.wire.codec import HEADER_BYTES, decode
from segstore.wire.errors import WireError
from segstore.wire.inspect.payloads import payload_text
from segstore.wire.printable import printable
from segstore.wire.schema import COMMANDS, Command, FieldType, Nested, Rows, Unknown, WireStruct, decode_mutf8, types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segstore.wire.codec import UnknownPolicy
    from segstore.wire.schema import Buffer

_READ_INT32: Final = struct.Struct(">i").unpack_from

Kind = Literal["plain", "text", "data"]

_BYTES_A_LINE: Final = 16
_LINES_A_FIELD: Final = 4
_SHOWN_TEXT: Final = 96
_UNREAD: Final = ""
"""The field of bytes that were not read. If the command has secrets, they may contain a part of a secret."""


class Span(msgspec.Struct, frozen=True):
    """A range of bytes in a frame with one meaning.

    offset: from the start of the frame, header included. An optional field that is missing has length 0 and its default
    as value. value: as in JSON (`Command.to_dict`); None for bytes that were not read. kind: the kind of value.
    """

    offset: int
    length: int
    field: str
    value: Any
    note: str = ""
    secret: bool = False
    kind: Kind = "plain"


class Description(msgspec.Struct, frozen=True):
    """All spans of one frame, its bytes, and the command or the error that results from decoding it."""

    frame: bytes
    spans: tuple[Span, ...]
    command: Command | None
    error: WireError | None


class _Stop(Exception):
    """Ends the walk where the frame becomes unreadable; never leaves this module."""


class _Walk:
    """Reads the fields of one body and records a span for each field."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.at = HEADER_BYTES
        self.end = len(frame)
        self.is_cut = False  # the header announces more bytes
        self.spans: list[Span] = []
        self.secrets: frozenset[str] = frozenset()

    def take(self, length: int, field: str, value: Any, note: str = "", kind: Kind = "plain") -> None:
        self.spans.append(Span(self.at, length, field, value, note, field in self.secrets, kind))
        self.at += length

    def need(self, length: int, field: str, kind: Kind = "plain") -> None:
        """Ends the walk if a field is longer than the remaining bytes, which become the field's."""
        left = self.end - self.at
        if 0 <= length <= left:
            return
        if left and length > 0:
            value = self.frame[self.at : self.end].hex() if kind == "data" else None
            self.take(left, field, value, f"{left} of {length} bytes", kind)
        raise _Stop

    def int32(self, field: str) -> int:
        self.need(4, field)
        number: int = _READ_INT32(self.frame, self.at)[0]
        return number

    @property
    def is_cut_here(self) -> bool:
        """Whether the frame is cut within the field that follows."""
        return self.is_cut and self.at < self.end

    def count(self, field: str, note: str = "") -> int:
        number = self.int32(field)
        self.take(4, field, number, note)
        return number

    def nodes(self, nodes: tuple[FieldType, ...], prefix: str) -> None:
        for node in nodes:
            self.node(node, prefix + node.name)

    def node(self, node: FieldType, field: str) -> None:
        match node:
            case types.Fixed():
                self.fixed(node, field)
            case types.EnumCode(members=members, unknown=unknown):
                number = self.int32(field)
                known = number in {int(member) for member in members}
                name = (members(number) if known else unknown).name
                self.take(4, field, name, str(number) if known else f"{number} is not one of them")
            case types.Marker(value=value):
                number = self.int32(field)
                if number != value:
                    raise _Stop
                self.take(4, field, number, "always this")
            case types.Text():
                self.text(field)
            case types.Blob():
                self.data(node, field)
            case types.Rest(frames=frames):
                self.remainder(field, frames)
            case types.Zeros():
                self.take(self.end - self.at, field, self.end - self.at, "the number of bytes left")
            case types.SizedData():
                self.sized(node, field)
            case types.Tail():
                if self.end - self.at < node.needs and not self.is_cut_here:
                    kind: Kind = "text" if isinstance(node.default, str) else "plain"
                    self.take(0, field, _plain(node.default), "missing: its default", kind)
                else:
                    self.node(node.inner, field)
            case Nested():
                self.nodes(node.parts, field + ".")
            case types.Counted():
                for index in range(self.elements(field, node.smallest, node.negative_is_empty)):
                    self.node(node.element, f"{field}[{index}]")
            case Rows():
                for index in range(self.elements(field, node.smallest, False)):
                    for column in node.columns:
                        self.node(column, f"{field[: len(field) - len(node.name)]}{column.name}[{index}]")
            case _:
                raise TypeError(f"{field}: no description for {type(node).__name__}")

    def fixed(self, node: types.Fixed, field: str) -> None:
        self.need(node.size, field)
        (value,) = struct.unpack_from(">" + node.format, self.frame, self.at)
        self.take(node.size, field, str(uuid.UUID(bytes=value)) if node.format == "16s" else value)

    def text(self, field: str) -> None:
        self.need(2, field + ".length")
        length = int.from_bytes(self.frame[self.at : self.at + 2], "big")
        self.take(2, field + ".length", length)
        self.need(length, field, "text")
        try:
            value = decode_mutf8(self.frame[self.at : self.at + length])
        except ValueError as cause:
            raise _Stop from cause
        self.take(length, field, value, kind="text")

    def data(self, node: types.Blob, field: str) -> None:
        if node.optional and self.end - self.at < 4 and not self.is_cut_here:
            self.take(0, field, "", "missing: its default")
            return
        length = self.count(field + ".length")
        if length < 0 and node.negative_is_empty:
            self.take(0, field, "", "a negative length is no data")
            return
        self.bytes(length, field)

    def bytes(self, length: int, field: str) -> None:
        self.need(length, field, "data")
        self.take(length, field, self.frame[self.at : self.at + length].hex(), kind="data")

    def remainder(self, field: str, frames: tuple[int, ...]) -> None:
        # The frames are shown as far as the bytes are frames.
        index = 0
        while frames and self.end - self.at >= HEADER_BYTES:
            kind, length = struct.unpack_from(">ii", self.frame, self.at)
            if kind not in frames or not 0 <= length <= self.end - self.at - HEADER_BYTES:
                break
            self.take(4, f"{field}[{index}].type", kind, COMMANDS[kind].type_name)
            self.take(4, f"{field}[{index}].length", length)
            self.bytes(length, f"{field}[{index}]")
            index += 1
        if self.at < self.end or not index:
            self.bytes(self.end - self.at, field if not index else f"{field}[{index}]")

    def sized(self, node: types.SizedData, field: str) -> None:
        self.count(field + ".total", "bytes of what follows, with the length")
        length = self.count(field + ".length")
        self.bytes(length, field)
        if node.trailer is None:
            return
        trailer = field[: len(field) - len(node.name)] + node.trailer.name
        if length:
            self.fixed(node.trailer, trailer)
        else:
            self.take(0, trailer, node.missing, "left out after no data")

    def elements(self, field: str, smallest: int, negative_is_empty: bool) -> int:
        number = self.count(field + ".count")
        if number < 0 and not negative_is_empty:
            raise _Stop
        return min(max(number, 0), (self.end - self.at) // max(smallest, 1) + 1)  # the last one may be cut


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    return list(value) if isinstance(value, tuple) else value


def describe(frame: Buffer, *, unknown: UnknownPolicy = "refuse") -> Description:
    """Describes the bytes of one frame, which may be malformed or incomplete. Never raises."""
    data = bytes(frame)
    command: Command | None = None
    error: WireError | None = None
    try:
        command = decode(data, unknown=unknown)
    except WireError as found:
        error = found
    walk = _Walk(data)
    with suppress(_Stop):  # what follows is not read
        _header(walk)
        cls = COMMANDS.get(_READ_INT32(data)[0])
        if cls is not None and cls.code:
            if cls.secrets:
                walk.secrets = cls.secrets | {_UNREAD}
            walk.nodes(cls.parts, "")
            if walk.at < walk.end:
                walk.take(walk.end - walk.at, _UNREAD, None, "not read: behind the last field")
        elif walk.at < walk.end:
            walk.take(walk.end - walk.at, "data", data[walk.at :].hex(), kind="data")
    if walk.at < len(data):
        walk.take(len(data) - walk.at, _UNREAD, None, "not read")
    return Description(data, tuple(walk.spans), command, error)


def _header(walk: _Walk) -> None:
    walk.at = 0
    code = walk.int32("type")
    walk.take(4, "type", code, COMMANDS[code].type_name if code in COMMANDS else "")
    length = walk.int32("length")
    left = walk.end - HEADER_BYTES
    walk.take(4, "length", length, "" if length == left else f"but {left} bytes follow")
    if length != left:
        # The body is read as far as present; bytes after it do not belong to it.
        walk.is_cut = length > left
        walk.end = min(walk.end, HEADER_BYTES + max(length, 0))


def lines(description: Description, *, show_tokens: bool = False, full: bool = False) -> Iterator[str]:
    """Formats a description as lines: offset, bytes, field, value; then the error, if any.

    full: if False, a long field shows its first 64 bytes. Offsets are hexadecimal, from the frame's start.
    """
    spans = [span for span in description.spans if span.length or span.note]
    wide = max((len(span.field) for span in spans), default=0)
    error = description.error
    for span in spans:
        hidden = span.secret and not show_tokens
        raw = description.frame[span.offset : span.offset + span.length]
        rows = [raw[at : at + _BYTES_A_LINE] for at in range(0, len(raw), _BYTES_A_LINE)] or [b""]
        left_out = 0 if full else max(0, len(rows) - _LINES_A_FIELD)
        for index, row in enumerate(rows[: len(rows) - left_out]):
            shown = " ".join(["··"] * len(row)) if hidden else row.hex(" ")
            said = f"  {span.field:<{wide}}  {_said(span, hidden, full)}".rstrip() if index == 0 else ""
            yield f"  {span.offset + index * _BYTES_A_LINE:06x}  {shown:<{_BYTES_A_LINE * 3 - 1}}{said}".rstrip()
        if left_out:
            yield f"          … {len(raw) - _LINES_A_FIELD * _BYTES_A_LINE} more bytes"
    if error is not None:
        place = "" if error.offset is None else f" at {error.offset:#06x}"
        yield f"  error{place}: {error}"


def _said(span: Span, hidden: bool, full: bool) -> str:
    if span.value is None:
        said = ""
    elif hidden:
        said = _withheld(span.value)
    elif span.kind == "data":
        said = f"{span.length} bytes" + (f" {_payload(span.value, full)}" if span.length else "")
    elif span.kind == "text":
        said = _quoted(span.value, full)
    else:
        said = str(span.value).lower() if isinstance(span.value, bool) else str(span.value)
    return f"{said} ({span.note})" if said and span.note else said or span.note


def _withheld(token: str) -> str:
    return f"<{len(token)} characters>" if token else '""'


def _payload(data: str, full: bool) -> str:
    """Formats a payload as text, or other bytes as in a hex dump, because their hex is shown beside it."""
    text = payload_text(bytes.fromhex(data), full=full)
    if not text.startswith("0x"):
        return text
    head = bytes.fromhex(data[: 2 * _BYTES_A_LINE])
    return "|" + "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in head) + "|"


def _quoted(text: str, full: bool = False) -> str:
    if len(text) > _SHOWN_TEXT and not full:
        return f"{printable(json.dumps(text[:_SHOWN_TEXT]))}… ({len(text)} characters)"
    return f'"{text}"' if text.isprintable() else printable(json.dumps(text))


def summary(command: Command, *, full: bool = False) -> str:
    """Formats a command as one line: its type and fields. Payloads are `payload_text`; tokens show as lengths.

    full: whether long texts, payloads and lists are shown whole.
    """
    name = command.type_name if not isinstance(command, Unknown) else f"UNKNOWN {command.type_code}"
    return f"{name} {_fields(command, full)}".rstrip()


def _fields(value: WireStruct, full: bool) -> str:
    return " ".join(
        f"{name}={_withheld(field) if name in value.secrets else _short(field, full)}"
        for name in value.__struct_fields__
        for field in (getattr(value, name),)
    )


def _short(value: Any, full: bool) -> str:
    match value:
        case bool():
            return str(value).lower()
        case enum.Enum():
            return f'"{value.name}"'
        case uuid.UUID():
            return f'"{value}"'
        case str():
            return _quoted(value, full)
        case WireStruct():
            return "{" + _fields(value, full) + "}"
        case bytes() | bytearray() | memoryview():
            return payload_text(value, full=full)
        case tuple() | list():
            shown = value if full else islice(value, 4)
            more = "" if full or len(value) <= 4 else f" … {len(value)} in all"
            return f"[{' '.join(_short(each, full) for each in shown)}{more}]"
    return str(value)
