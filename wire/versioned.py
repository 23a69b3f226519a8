"""Objects of Pravega's `VersionedSerializer`: a format version, a version, and revisions with their lengths.

Objects that may be of several types have their type before the version. Invariant: no length is trusted beyond the
remaining bytes; unknown revisions are skipped. Refused (`ValueError`): objects of other versions, and bytes that end
early. Follows `VersionedSerializer`, `RevisionDataInputStream` and `RevisionDataOutputStream` (Pravega).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Final, TypeVar
from uuid import UUID

from segstore.wire.names import SegmentName
from segstore.wire.schema import decode_mutf8, encode_mutf8

K = TypeVar("K")
V = TypeVar("V")

Range = tuple[float, float]
"""The key range of a segment."""

_SHORT: Final = Struct(">H")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_RANGE: Final = Struct(">dd")
_NO_RANGE: Final = (-1.0, -1.0)
_MOST_COUNTED: Final = (1 << 30) - 2


class Input:
    """Reads data that `RevisionDataOutput` wrote. All methods raise ValueError for any other data."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        left = len(self.data) - self.at
        if not 0 <= size <= left:
            raise ValueError(f"{size} bytes expected at {self.at}, only {left} left")
        self.at += size
        return self.data[self.at - size : self.at]

    def byte(self) -> int:
        return self.take(1)[0]

    def flag(self) -> bool:
        return self.byte() != 0

    def integer(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def long(self) -> int:
        return int(_LONG.unpack(self.take(8))[0])

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def text(self) -> str:
        return decode_mutf8(self.take(_SHORT.unpack(self.take(2))[0]))

    def segment(self) -> str:
        name = self.text()
        if SegmentName.parse(name).segment_id is None:
            raise ValueError(f"{name!r:.200} is not a stream segment")
        return name

    def range(self) -> Range | None:
        low, high = _RANGE.unpack(self.take(_RANGE.size))
        return None if low < 0 or high < 0 else (low, high)

    def count(self) -> int:
        """Reads a number of 1, 2 or 4 bytes, depending on its first bits."""
        first = self.byte()
        if first < 0x80:
            return first
        size = 3 if first & 0x40 else 1
        return int.from_bytes(bytes([first & 0x3F]) + self.take(size))

    def compact_long(self) -> int:
        """Reads a number of 1, 2, 4 or 8 bytes, depending on its first two bits."""
        first = self.byte()
        return int.from_bytes(bytes([first & 0x3F]) + self.take((1 << (first >> 6)) - 1))

    def compact_signed_long(self) -> int:
        """As `compact_long`; the first bit is the sign, the next two the size."""
        first = self.byte()
        value = int.from_bytes(bytes([first & 0x1F]) + self.take((1 << (first >> 5 & 3)) - 1))
        return -value - 1 if first & 0x80 else value

    def array(self) -> bytes:
        return self.take(self.count())

    def list(self, element: Callable[[], V]) -> list[V]:
        return [element() for _ in range(self.count())]

    def map(self, key: Callable[[], K], value: Callable[[], V]) -> dict[K, V]:
        return {key(): value() for _ in range(self.count())}

    def offsets(self) -> dict[str, int]:
        return self.map(self.segment, self.long)


class Output:
    """Writes what `RevisionDataInput` reads. Each method returns the object itself."""

    def __init__(self) -> None:
        self.data = bytearray()

    def flag(self, value: bool) -> Output:
        self.data.append(value)
        return self

    def integer(self, value: int) -> Output:
        self.data += _INT.pack(value)
        return self

    def long(self, value: int) -> Output:
        self.data += _LONG.pack(value)
        return self

    def uuid(self, value: UUID) -> Output:
        self.data += value.bytes
        return self

    def text(self, value: str) -> Output:
        encoded = encode_mutf8(value)
        if len(encoded) > 0xFFFF:
            raise ValueError(f"a text of {len(encoded)} bytes is too long: {value[:80]!r}")
        self.data += _SHORT.pack(len(encoded)) + encoded
        return self

    segment = text

    def range(self, value: Range | None) -> Output:
        self.data += _RANGE.pack(*(value or _NO_RANGE))
        return self

    def count(self, value: int) -> Output:
        if value < 1 << 7:
            self.data.append(value)
        elif value < 1 << 14:
            self.data += (value | 0x8000).to_bytes(2)
        elif value <= _MOST_COUNTED:
            self.data += (value | 0xC000_0000).to_bytes(4)
        else:
            raise ValueError(f"{value} elements are too many")
        return self

    def compact_long(self, value: int) -> Output:
        size = _size(value, 6)
        self.data += (value | (size.bit_length() - 1) << 8 * size - 2).to_bytes(size)
        return self

    def compact_signed_long(self, value: int) -> Output:
        magnitude = value if value >= 0 else -value - 1
        size = _size(magnitude, 5)
        prefix = (4 if value < 0 else 0) | size.bit_length() - 1
        self.data += (magnitude | prefix << 8 * size - 3).to_bytes(size)
        return self

    def array(self, value: bytes) -> Output:
        self.count(len(value)).data.extend(value)
        return self

    def list(self, values: Sequence[V], element: Callable[[V], object]) -> Output:
        self.count(len(values))
        for value in values:
            element(value)
        return self

    def map(self, values: Mapping[K, V], key: Callable[[K], object], value: Callable[[V], object]) -> Output:
        self.count(len(values))
        for name, element in values.items():
            key(name)
            value(element)
        return self

    def texts(self, values: Sequence[str]) -> Output:
        return self.list(values, self.text)

    def longs(self, values: Sequence[int]) -> Output:
        return self.list(values, self.long)

    def offsets(self, values: Mapping[str, int]) -> Output:
        return self.map(values, self.text, self.long)


def _size(value: int, spare: int) -> int:
    """Returns the bytes of a compact number, the first of which has `spare` bits for it."""
    for size in (1, 2, 4, 8):
        if value < 1 << spare + 8 * (size - 1):
            return size
    raise ValueError(f"{value} does not fit a compact number")


def encode_object(revisions: Iterable[Output], *, kind: int | None = None, version: int = 0) -> bytes:
    """Encodes an object. kind: its type, if several types are possible."""
    written = [revision.data for revision in revisions]
    head = bytes([0, *(() if kind is None else (kind,)), version, len(written)])
    parts = [bytes([number]) + _INT.pack(len(data)) + data for number, data in enumerate(written)]
    return head + b"".join(parts)


def decode_object(data: Input, *, version: int = 0) -> list[Input]:
    """Decodes an object of one type: one or more revisions."""
    header, found, count = data.take(3)
    if header or found != version or not count:
        raise ValueError(f"an object in version {header}.{found} with {count} revisions is not known")
    return _revisions(data, count)


def decode_typed(data: Input, last: int) -> tuple[int, list[Input]]:
    """Decodes an object of a type up to `last`: its type and one or more revisions."""
    header, kind, version, count = data.take(4)
    if header or version or not count or kind > last:
        raise ValueError(f"type {kind} in version {header}.{version} with {count} revisions is not known")
    return kind, _revisions(data, count)


def _revisions(data: Input, count: int) -> list[Input]:
    revisions = []
    for expected in range(count):
        number = data.byte()
        if number != expected:
            raise ValueError(f"revision {number} where {expected} is expected, at {data.at}")
        revisions.append(Input(data.take(data.integer())))
    return revisions
