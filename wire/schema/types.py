"""Field types of the wire protocol: construct subclasses, each the specification of one kind of field.

They add what `construct` lacks: Java's modified UTF-8, trailing fields that older peers omit, counts and lengths that
are checked against the remaining bytes before anything is allocated. Parsing through them is the slow, checked path.

The fields of a record are named copies of these objects. Code generators, the dissector and test strategies match on
their classes and read plain facts from them: names, `struct` formats, numbers, booleans, other fields. Each such reader
refuses an unknown class, so a new type cannot be forgotten.

Every error is a `WireError` with the field's path and, in parsing, its offset. Source: `EnhancedByteBufInputStream`,
`WireCommands` in `io.pravega.shared.protocol.netty` and `java.io.DataInputStream.readUTF`.
"""

from __future__ import annotations

import enum
import io
import re
import struct
import uuid
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

import construct

from segstore.wire.errors import BadField, FrameTooLarge, Truncated
from segstore.wire.schema.modified_utf8 import MAX_STRING_BYTES, decode_mutf8, encode_mutf8, well_formed

MAX_FRAME_BYTES: Final = 0x00FF_FFFF
"""The longest frame, header included. Source: `WireCommands.MAX_WIRECOMMAND_SIZE`."""
Buffer = bytes | bytearray | memoryview

_two_int32: Final = struct.Struct(">ii").unpack_from
_WIDEST_BITS: Final = 128
"""Bits of the widest number on the wire, a UUID."""
_FURTHER: Final = re.compile(r"\+\w+")
"""The attributes of a part behind its first attribute, in a path."""


# --- parsing with facts -----------------------------------------------------------------------------------------


class BodyStream:
    """The body of one frame, as a stream for construct that copies no payload.

    most_elements: the maximum number of elements of a list; None for as many as the bytes allow.
    """

    __slots__ = ("_at", "most_elements", "size", "view")

    def __init__(self, body: Buffer, most_elements: int | None = None) -> None:
        self.view = memoryview(body).toreadonly()
        self.most_elements = most_elements
        self.size = self.view.nbytes
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> None:
        self._at = offset

    def take(self, size: int = -1) -> memoryview:
        """Returns a view of the next bytes, fewer at the end; -1 means all remaining bytes."""
        data = self.view[self._at :] if size < 0 else self.view[self._at : self._at + size]
        self._at += data.nbytes
        return data

    @property
    def left(self) -> int:
        return self.size - self._at


def dotted(path: str) -> str:
    """construct's path `(parsing) -> a -> b[1]` as `a.b[1]`.

    A part with several attributes is named `a+b`; a suffix `#1` means the second attribute, no suffix the first.
    """
    names: list[str] = []
    for part in path.split(" -> ")[1:]:
        if part.startswith("#"):
            joined, bracket, index = names.pop().partition("[")
            part = joined.split("+")[int(part[1:])] + bracket + index
        names.append(part)
    return _FURTHER.sub("", ".".join(names))


def _take(stream: BodyStream, wanted: int, path: str, announced_at: int | None = None) -> memoryview:
    """Takes the bytes of a field. announced_at: the offset of their number, if the frame has it."""
    if wanted > stream.left:
        raise Truncated(
            f"{wanted} bytes are {'needed' if announced_at is None else 'announced'} but {stream.left} are left",
            field=dotted(path),
            offset=stream.tell() if announced_at is None else announced_at,
            limit=stream.left,
            actual=wanted,
        )
    return stream.take(wanted)


def _length(stream: BodyStream, context: Any, path: str) -> int:
    length: int = Int32._parse(stream, context, path)
    return length


def _refuse_negative(value: int, what: str, stream: BodyStream, path: str) -> None:
    if value < 0:
        raise BadField(
            f"{what} {value} is negative", field=dotted(path), offset=stream.tell() - 4, limit=0, actual=value
        )


def check_buffer(obj: Any, path: str) -> Any:
    if not isinstance(obj, (bytes, bytearray, memoryview)):
        raise BadField(f"a buffer is needed, not {type(obj).__name__}", field=dotted(path), actual=obj)
    if isinstance(obj, memoryview) and not obj.c_contiguous:
        raise BadField("a contiguous buffer is needed; this view skips bytes", field=dotted(path), actual=obj)
    return obj


def shown(obj: Any) -> str:
    """Returns a value as it is in errors; Python does not write numbers of thousands of digits."""
    if isinstance(obj, int) and obj.bit_length() > _WIDEST_BITS:
        return f"a number of {obj.bit_length()} bits"
    return f"{obj!r:.80}"


def _size(obj: Any) -> int:
    return obj.nbytes if isinstance(obj, memoryview) else len(obj)


# --- field types ------------------------------------------------------------------------------------------------


class FieldType(construct.Construct):  # type: ignore[misc]  # construct has no stubs
    """Base class of field types.

    name: the attribute that a field fills, the first of several; "" for an element of a list. label: the name in paths.
    """

    name: str
    label: str

    def __post_init__(self) -> None:
        super().__init__()

    def named(self, name: str) -> Self:
        """Returns the field of this type that fills an attribute."""
        named = copy(self)
        named.name = named.label = name
        return named

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that the field fills: one attribute, except for rows, table keys and constants."""
        return (self.name,)

    def extent(self, body: memoryview, at: int) -> int:
        """Returns the end of the field that starts at a position: a fast way to skip elements of a list.

        Raises ValueError or IndexError where `_parse` may refuse.
        """
        raise TypeError(f"{type(self).__name__} is no element of a list")


def end_of(fields: Iterable[FieldType], body: memoryview, at: int) -> int:
    """Returns the end of consecutive fields. Raises as `FieldType.extent`."""
    for part in fields:
        at = part.extent(body, at)
    return at


@dataclass(eq=False)
class Fixed(FieldType):
    """A fixed-width field. `format` is its `struct` code; any byte but 0 is true, true is written as 1."""

    format: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self._struct = struct.Struct(">" + self.format)
        self.size = self._struct.size

    def extent(self, body: memoryview, at: int) -> int:
        return at + self.size

    def _parse(self, stream: BodyStream, context: Any, path: str) -> Any:
        return self._struct.unpack(_take(stream, self.size, path))[0]

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        try:
            stream.write(self._struct.pack(obj))
        except (struct.error, ValueError, TypeError, OverflowError) as cause:
            raise BadField(f"{shown(obj)} is no int{8 * self.size}", field=dotted(path), actual=obj) from cause
        return obj


class _Uuid(Fixed):
    """Two int64, most significant first. Value: uuid.UUID."""

    def _parse(self, stream: BodyStream, context: Any, path: str) -> uuid.UUID:
        # Two reads, as in the reference, so that the error names the half that is missing.
        return uuid.UUID(bytes=bytes(_take(stream, 8, path)) + bytes(_take(stream, 8, path)))

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        if not isinstance(obj, uuid.UUID):
            raise BadField(f"a UUID is needed, not {type(obj).__name__}", field=dotted(path), actual=obj)
        stream.write(obj.bytes)
        return obj


Int8: Final = Fixed("b")
Int32: Final = Fixed("i")
Int64: Final = Fixed("q")
Bool: Final = Fixed("?")
Uuid: Final = _Uuid("16s")


@dataclass(eq=False)
class Text(FieldType):
    """uint16 byte length, then modified UTF-8. Value: str."""

    def extent(self, body: memoryview, at: int) -> int:
        end = at + 2 + (body[at] << 8 | body[at + 1])
        if not well_formed(body, at + 2, end):
            raise ValueError
        return end

    def _parse(self, stream: BodyStream, context: Any, path: str) -> str:
        length = int.from_bytes(_take(stream, 2, path))
        start = stream.tell()
        data = bytes(_take(stream, length, path, start - 2))
        try:
            return decode_mutf8(data)
        except ValueError as cause:
            raise BadField(str(cause), field=dotted(path), offset=start, actual=data[:32].hex()) from cause

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        if not isinstance(obj, str):
            raise BadField(f"text is needed, not {type(obj).__name__}", field=dotted(path), actual=obj)
        data = encode_mutf8(obj)
        if len(data) > MAX_STRING_BYTES:
            raise BadField(
                f"{len(data)} bytes of modified UTF-8 exceed the {MAX_STRING_BYTES} that a string may have",
                field=dotted(path),
                limit=MAX_STRING_BYTES,
                actual=len(data),
            )
        stream.write(len(data).to_bytes(2, "big"))
        stream.write(data)
        return obj


JavaUTF: Final = Text()


@dataclass(eq=False, kw_only=True)
class Blob(FieldType):
    """int32 length, then as many bytes. Value: a buffer; from the fast path, a view of the frame.

    negative_is_empty: whether a negative length is read as empty (AppendBlockEnd, ConditionalBlockEnd) or refused.
    optional: whether the data is empty if fewer than four length bytes are left (the buffers of a table iteration).
    written: False if the field is read but always written empty (the deprecated prefix filter).
    """

    negative_is_empty: bool = False
    optional: bool = False
    written: bool = True

    def _parse(self, stream: BodyStream, context: Any, path: str) -> Buffer:
        if self.optional and stream.left < 4:
            return b""
        length = _length(stream, context, path)
        if length < 0 and self.negative_is_empty:
            return b""
        _refuse_negative(length, "length", stream, path)
        return _take(stream, length, path, stream.tell() - 4)

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        data = check_buffer(obj, path) if self.written else b""
        stream.write(_size(data).to_bytes(4, "big"))
        stream.write(data)
        return obj


@dataclass(eq=False, kw_only=True)
class Rest(FieldType):
    """The rest of the body. Value: a buffer.

    frames: the type codes of the frames that it consists of; empty for bytes without a structure.
    """

    frames: tuple[int, ...] = ()

    def _parse(self, stream: BodyStream, context: Any, path: str) -> Buffer:
        return stream.take()

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        stream.write(check_buffer(obj, path))
        return obj


@dataclass(eq=False)
class Zeros(FieldType):
    """Writes its value as that number of zero bytes; reads as the number of remaining bytes of any value."""

    def _parse(self, stream: BodyStream, context: Any, path: str) -> int:
        return stream.take().nbytes

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        if not isinstance(obj, int) or obj < 0:
            raise BadField(f"length {shown(obj)} is not a count of bytes", field=dotted(path), limit=0, actual=obj)
        if obj > MAX_FRAME_BYTES - 8:
            raise FrameTooLarge(
                f"a frame with {shown(obj)} zero bytes exceeds the {MAX_FRAME_BYTES} that one may have",
                limit=MAX_FRAME_BYTES,
                actual=obj + 8,
            )
        stream.write(bytes(obj))
        return obj


@dataclass(eq=False)
class Tail(FieldType):
    """A trailing field that older peers omit.

    default: the value of a missing field.
    needs: the number of remaining bytes from which on the field is read. With its width, a partial field is ignored;
        with 1, it is an error.
    """

    inner: FieldType
    default: Any
    needs: int = field(kw_only=True)

    def named(self, name: str) -> Self:
        tail = super().named(name)
        tail.inner = self.inner.named(name)
        return tail

    def _parse(self, stream: BodyStream, context: Any, path: str) -> Any:
        if stream.left < self.needs:
            return self.default
        return self.inner._parse(stream, context, path)

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        return self.inner._build(obj, stream, context, path)


@dataclass(eq=False)
class EnumCode(FieldType):
    """An int32 enum code; an unknown number reads as `unknown`. Value: the enum member."""

    members: type[enum.IntEnum]
    unknown: enum.IntEnum

    @cached_property
    def by_code(self) -> dict[int, enum.IntEnum]:
        """The members by their codes."""
        return {int(member): member for member in self.members}

    def _parse(self, stream: BodyStream, context: Any, path: str) -> enum.IntEnum:
        return self.by_code.get(_length(stream, context, path), self.unknown)

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        try:
            member = self.by_code[obj]
        except (KeyError, TypeError) as cause:
            raise BadField(f"{shown(obj)} is no {self.members.__name__}", field=dotted(path), actual=obj) from cause
        stream.write(int(member).to_bytes(4, "big", signed=True))
        return obj


@dataclass(eq=False)
class SizedData(FieldType):
    """int32 total, int32 length, the data and, if the data is not empty, a trailer.

    Used for table keys (trailer: the version) and table values (no trailer). When writing, the total covers all that
    follows it, including the trailer even if empty data omits it. When reading, it must not exceed the bytes from
    itself to the end of the frame, and is ignored if the data is empty. Value: the data, or (data, trailer).
    """

    trailer: Fixed | None = None
    missing: Any = None

    @property
    def width(self) -> int:
        """Size of the trailer."""
        return 0 if self.trailer is None else self.trailer.size

    def with_trailer(self, name: str) -> Self:
        """Returns the field whose trailer fills an attribute, too."""
        assert self.trailer is not None
        sized = copy(self)
        sized.trailer = self.trailer.named(name)
        sized.label = f"{self.name}+{name}"
        return sized

    @property
    def attributes(self) -> tuple[str, ...]:
        return (self.name,) if self.trailer is None else (self.name, self.trailer.name)

    def extent(self, body: memoryview, at: int) -> int:
        total, length = _two_int32(body, at)
        if not length:
            return at + 8
        if length < 0 or total > len(body) - at:
            raise ValueError
        return at + 8 + int(length) + self.width

    def _parse(self, stream: BodyStream, context: Any, path: str) -> Any:
        start, available = stream.tell(), stream.left
        total = _length(stream, context, path)
        length = _length(stream, context, path)
        if length == 0:
            return b"" if self.trailer is None else (b"", self.missing)
        if total > available:
            raise Truncated(
                f"{total} bytes are announced but {available} are left",
                field=dotted(path),
                offset=start,
                limit=available,
                actual=total,
            )
        _refuse_negative(length, "length", stream, path)
        data = _take(stream, length, path, start + 4)
        return data if self.trailer is None else (data, self.trailer._parse(stream, context, f"{path} -> #1"))

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        data = check_buffer(obj if self.trailer is None else obj[0], path)
        stream.write((4 + _size(data) + self.width).to_bytes(4, "big"))
        stream.write(_size(data).to_bytes(4, "big"))
        stream.write(data)
        if _size(data) and self.trailer is not None:
            self.trailer._build(obj[1], stream, context, f"{path} -> #1")
        return obj


@dataclass(eq=False)
class Counted(FieldType):
    """int32 count, then as many elements. Value: a tuple.

    A count is refused before anything is allocated if even the smallest elements would exceed the remaining bytes.
    element: a type with an `extent`.
    negative_is_empty: whether a negative count is read as 0 (table entries, attribute updates) or refused.
    """

    element: FieldType
    smallest: int = field(kw_only=True)
    negative_is_empty: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.element = self.element.named("")

    def _parse(self, stream: BodyStream, context: Any, path: str) -> tuple[Any, ...]:
        count = _length(stream, context, path)
        if count < 0 and self.negative_is_empty:
            return ()
        _refuse_negative(count, "count", stream, path)
        if count * self.smallest > stream.left:
            raise Truncated(
                f"{count} elements of at least {self.smallest} bytes are announced but {stream.left} bytes are left",
                field=dotted(path),
                offset=stream.tell() - 4,
                limit=stream.left // self.smallest,
                actual=count,
            )
        if stream.most_elements is not None and count > stream.most_elements:
            raise BadField(
                f"a list of {count} elements exceeds {stream.most_elements}",
                field=dotted(path),
                offset=stream.tell() - 4,
                limit=stream.most_elements,
                actual=count,
            )
        self._check(stream, context, path, count)
        return tuple(self.element._parse(stream, context, f"{path}[{index}]") for index in range(count))

    def _check(self, stream: BodyStream, context: Any, path: str, count: int) -> None:
        """Raises the error of the first bad element, before any element is made: a frame may hold millions."""
        body, start, extent = stream.view, stream.tell(), self.element.extent
        at = start
        for index in range(count):
            try:
                end = extent(body, at)
                if end > len(body):
                    raise ValueError
            except (ValueError, IndexError, struct.error):
                stream.seek(at)
                self.element._parse(stream, context, f"{path}[{index}]")
                end = stream.tell()
            at = end
        stream.seek(start)

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        if not isinstance(obj, (tuple, list)):
            raise BadField(f"a tuple is needed, not {type(obj).__name__}", field=dotted(path), actual=obj)
        stream.write(len(obj).to_bytes(4, "big"))
        for index, element in enumerate(obj):
            self.element._build(element, stream, context, f"{path}[{index}]")
        return obj


class Column(NamedTuple):
    """One of several attributes that are interleaved row by row after one count; adjacent columns become `Rows`."""

    element: FieldType
    smallest: int


@dataclass(eq=False)
class Marker(FieldType):
    """A constant int32 without an attribute: the type code inside a nested event."""

    value: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.flagbuildnone = True

    @property
    def attributes(self) -> tuple[str, ...]:
        return ()

    def extent(self, body: memoryview, at: int) -> int:
        return at + 4

    def _parse(self, stream: BodyStream, context: Any, path: str) -> None:
        code = _length(stream, context, path)
        if code != self.value:
            raise BadField(
                f"an event has type code {self.value}, found {code}",
                field=dotted(path),
                offset=stream.tell() - 4,
                limit=self.value,
                actual=code,
            )

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        stream.write(self.value.to_bytes(4, "big", signed=True))
        return obj


class Secret:
    """Annotation: the field is never shown, by `repr` or in logs."""
