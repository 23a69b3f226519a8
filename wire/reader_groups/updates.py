"""The state of a reader group of Java clients, from the events of its stream: states and updates, in order. Pure.

An event is the number 1 and an initial state, or 2 and updates, each with its length. Both are objects of Pravega's
`VersionedSerializer`: a format version, a type, a version, and revisions with their lengths; unknown revisions are
skipped. Checkpoints, and what does not change who reads what, are ignored.

Invariant: no length is trusted beyond the remaining bytes. Refused (`ValueError`): events of another form, and updates
that contradict the state. Follows `ReaderGroupState`, `UpdateOrInitSerializer` and `RevisionDataInputStream` (Pravega).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from segstore.wire.names import SegmentName
from segstore.wire.schema import decode_mutf8

K = TypeVar("K")
V = TypeVar("V")

_INITIAL: Final = 1
_UPDATES: Final = 2
_LAST_TYPE: Final = 13
_SHORT: Final = Struct(">H")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_RANGE_BYTES: Final = 16


class _Input:
    """Reads what `RevisionDataOutput` writes."""

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

    def integer(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def long(self) -> int:
        return int(_LONG.unpack(self.take(8))[0])

    def text(self) -> str:
        return decode_mutf8(self.take(_SHORT.unpack(self.take(2))[0]))

    def segment(self) -> str:
        name = self.text()
        if SegmentName.parse(name).segment_id is None:
            raise ValueError(f"{name!r:.200} is not a stream segment")
        return name

    def segment_and_range(self) -> str:
        name = self.segment()
        self.take(_RANGE_BYTES)
        return name

    def count(self) -> int:
        """Reads a number in one, two or four bytes, as its first bits say."""
        first = self.byte()
        if first < 0x80:
            return first
        size = 3 if first & 0x40 else 1
        return int.from_bytes(bytes([first & 0x3F]) + self.take(size))

    def array(self) -> bytes:
        return self.take(self.count())

    def numbers(self) -> set[int]:
        return {self.long() for _ in range(self.count())}

    def map(self, key: Callable[[], K], value: Callable[[], V]) -> dict[K, V]:
        return {key(): value() for _ in range(self.count())}

    def offsets(self) -> dict[str, int]:
        return self.map(self.segment, self.long)


class _Object(NamedTuple):
    """An object: its type, and the bytes of its revisions."""

    kind: int
    revisions: list[_Input]


def _object(data: _Input) -> _Object:
    header, kind, version, count = data.take(4)
    if header or version or not count or kind > _LAST_TYPE:
        raise ValueError(f"type {kind} in version {header}.{version} with {count} revisions is not known")
    revisions = []
    for expected in range(count):
        number = data.byte()
        if number != expected:
            raise ValueError(f"revision {number} where {expected} is expected, at {data.at}")
        revisions.append(_Input(data.take(data.integer())))
    return _Object(kind, revisions)


class ReplayedGroup:
    """The state of one group after the events applied so far.

    Attributes:
        readers: online reader → segment → offset from which it has read the segment.
        unassigned: segment → offset.
        future: segment → ids of the predecessors that must be read first.
        read: segment → offset up to which its reader has read it, as it has reported last.
    """

    def __init__(self) -> None:
        self._reset()
        self._apply: tuple[Callable[[list[_Input]], None], ...] = (
            self._start,
            self._start_compact,
            self._add,
            self._remove,
            self._release,
            self._acquire,
            self._progress,
            self._complete,
        )
        """By the type of the object. Those of higher types change nothing here."""

    def _reset(self) -> None:
        self.readers: dict[str, dict[str, int]] = {}
        self.unassigned: dict[str, int] = {}
        self.future: dict[str, set[int]] = {}
        self.read: dict[str, int] = {}
        self._successors: defaultdict[int, set[str]] = defaultdict(set)
        """The segments of `future` by id of a predecessor; also segments that have left it."""

    def positions(self) -> dict[str, dict[str, int]]:
        """Returns the offset of each segment of each online reader, as it has reported last."""
        return {
            reader: {name: self.read.get(name, offset) for name, offset in segments.items()}
            for reader, segments in self.readers.items()
        }

    def apply(self, event: bytes) -> None:
        """Applies an event, without its header. Raises ValueError; the state is then undefined."""
        data = _Input(event)
        kind = data.integer()
        if kind == _INITIAL:
            self._apply_object(data)
        elif kind == _UPDATES:
            while data.at < len(event):
                self._apply_object(_Input(data.take(data.integer())))
        else:
            raise ValueError(f"{kind} is neither an initial state nor updates")

    def _apply_object(self, data: _Input) -> None:
        kind, revisions = _object(data)
        if kind < len(self._apply):
            self._apply[kind](revisions)

    # --- states -----------------------------------------------------------------------------------------------------

    def _start(self, revisions: list[_Input]) -> None:
        data = revisions[0]
        data.array()  # the configuration
        self._reset()
        self.unassigned = data.offsets()

    def _start_compact(self, revisions: list[_Input]) -> None:
        data = revisions[0]
        data.array()  # the configuration
        data.array()  # the checkpoints
        data.map(data.text, data.long)  # distances to the tail
        self._reset()
        for segment, before in data.map(data.segment, data.numbers).items():
            self._await(segment, before)
        self.readers = data.map(data.text, data.offsets)
        self.unassigned = data.offsets()
        self.read = revisions[1].offsets() if len(revisions) > 1 else {}

    # --- updates ----------------------------------------------------------------------------------------------------

    def _add(self, revisions: list[_Input]) -> None:
        self.readers.setdefault(revisions[0].text(), {})

    def _remove(self, revisions: list[_Input]) -> None:
        reader, positions = revisions[0].text(), revisions[0].offsets()
        for segment, offset in self.readers.pop(reader, {}).items():
            self.unassigned[segment] = positions.get(segment, offset)

    def _release(self, revisions: list[_Input]) -> None:
        reader, segment, offset = revisions[0].text(), revisions[0].segment(), revisions[0].long()
        self._take_from(reader, segment)
        self.unassigned[segment] = offset

    def _acquire(self, revisions: list[_Input]) -> None:
        reader, segment = revisions[0].text(), revisions[0].segment()
        if reader not in self.readers or segment not in self.unassigned:
            raise ValueError(f"the reader {reader!r:.80} cannot acquire {segment!r:.200}")
        self.read[segment] = self.readers[reader][segment] = self.unassigned.pop(segment)

    def _progress(self, revisions: list[_Input]) -> None:
        for data in revisions[1:2]:
            self.read |= data.map(data.segment_and_range, data.long)

    def _complete(self, revisions: list[_Input]) -> None:
        data = revisions[0]
        reader, segment = data.text(), data.segment()
        following = data.map(data.segment, data.numbers)
        self._take_from(reader, segment)
        self.read.pop(segment, None)
        done = SegmentName.parse(segment).segment_id or 0
        for successor, before in following.items():
            if successor not in self.future:
                self._await(successor, before)
        for successor in self._successors.pop(done, set()) | following.keys():
            left = self.future.get(successor)
            if left is None:
                continue
            left.discard(done)
            if not left:
                del self.future[successor]
                self.unassigned[successor] = 0

    def _await(self, segment: str, before: set[int]) -> None:
        """A segment can be read once its predecessors are."""
        self.future[segment] = before
        for each in before:
            self._successors[each].add(segment)

    def _take_from(self, reader: str, segment: str) -> None:
        if self.readers.get(reader, {}).pop(segment, None) is None:
            raise ValueError(f"the reader {reader!r:.80} has no segment {segment!r:.200}")
