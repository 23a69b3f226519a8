"""The error tree of the segment store.

What a container refuses, sorted by what the peer is told:

    StoreError
    ├── SegmentExists        the name is taken, or was used up
    ├── NoSuchSegment        no such segment here
    ├── SegmentSealed        the segment takes no more changes, or no more data will come
    ├── SegmentTruncated     the offset lies before the segment's start, or beyond its end for a truncation
    ├── IndexTruncated       an entry of the index that is needed was truncated away
    ├── BadOffset            a conditional append or table update expected another length
    ├── BadAttribute         an attribute's value is not what the update asked for
    ├── NotOwner             another store owns the container
    ├── IllegalArgument      answered with the text, the connection stays
    ├── Unsupported          the operation does not exist for this kind of segment
    ├── TableNotEmpty        the table still has entries
    ├── KeyMissing           a conditional table update named a key that is absent
    ├── KeyBadVersion        a conditional table update named another version
    ├── Unanswered           has no reply, and the connection stays
    └── Unmapped             has no reply: the connection closes without one
        ├── AttributeLimit   a segment takes no more attributes
        ├── StoreFull        the store has used up its memory
        └── DataDamaged      a file of the data directory does not hold what was written to it

The facts are attributes, so that the one table that turns errors into replies never parses text. Follows the mapping in
``PravegaRequestProcessor`` and ``AppendProcessor``.
"""

from __future__ import annotations

from uuid import UUID


class StoreError(Exception):
    """Root of all that the store refuses.

    Attributes:
        segment: the segment that the error is about; "" where it is about none.
        message: one sentence with the facts.
    """

    def __init__(self, message: str, *, segment: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.segment = segment


class SegmentExists(StoreError):
    """The name cannot be given to a new segment: it is in use, or a segment that held data or was merged had it."""

    def __init__(self, segment: str) -> None:
        super().__init__(f"segment {segment!r} exists already or its name is used up", segment=segment)


class NoSuchSegment(StoreError):
    """The segment does not exist: never created, deleted, or merged into another."""

    def __init__(self, segment: str) -> None:
        super().__init__(f"segment {segment!r} does not exist", segment=segment)


class SegmentSealed(StoreError):
    """The segment is sealed."""

    def __init__(self, segment: str) -> None:
        super().__init__(f"segment {segment!r} is sealed", segment=segment)


class SegmentTruncated(StoreError):
    """The offset is not one that the segment has.

    Attributes:
        start_offset: the first offset that the segment still has.
        offset: the offset that was asked for.
    """

    def __init__(self, segment: str, *, start_offset: int, offset: int) -> None:
        super().__init__(f"segment {segment!r} starts at {start_offset} and has no offset {offset}", segment=segment)
        self.start_offset = start_offset
        self.offset = offset


class IndexTruncated(StoreError):
    """The search in an index segment needed an entry whose first bytes were truncated away.

    ``segment`` is the segment that the index belongs to. The reference answers this with a SegmentTruncated *reply*.
    """

    def __init__(self, segment: str) -> None:
        super().__init__(f"the index of segment {segment!r} is truncated inside an entry", segment=segment)


class BadOffset(StoreError):
    """The segment's length is not the one that a conditional append or table update expected.

    Attributes:
        expected: the length that the request named.
        actual: the length that the segment has.
    """

    def __init__(self, segment: str, *, expected: int, actual: int) -> None:
        super().__init__(f"segment {segment!r} is {actual} bytes long, not {expected}", segment=segment)
        self.expected = expected
        self.actual = actual


class BadAttribute(StoreError):
    """An attribute does not have the value that an update is conditional on.

    Attributes:
        attribute_id: the attribute.
        previous: its value, -2^63 if it has none.
    """

    def __init__(self, segment: str, *, attribute_id: UUID, previous: int) -> None:
        super().__init__(f"attribute {attribute_id} of segment {segment!r} is {previous}", segment=segment)
        self.attribute_id = attribute_id
        self.previous = previous


class NotOwner(StoreError):
    """The container that the segment maps to is not owned by this store.

    Attributes:
        container: its number.
    """

    def __init__(self, segment: str, *, container: int) -> None:
        super().__init__(f"container {container} of segment {segment!r} is not owned here", segment=segment)
        self.container = container


class IllegalArgument(StoreError):
    """An argument that is answered with ``message`` as it stands; the connection stays."""


class Unsupported(StoreError):
    """The operation does not exist for this kind of segment.

    Attributes:
        operation: its name, such as ``delete_table_segment``; "" where the caller knows better.
    """

    def __init__(self, message: str, *, segment: str = "", operation: str = "") -> None:
        super().__init__(message, segment=segment)
        self.operation = operation


class TableNotEmpty(StoreError):
    """The table segment still has entries."""

    def __init__(self, segment: str) -> None:
        super().__init__(f"table segment {segment!r} is not empty", segment=segment)


class KeyMissing(StoreError):
    """A conditional update or removal named a key that the table does not have."""

    def __init__(self, segment: str) -> None:
        super().__init__(f"a key that an update is conditional on is not in table {segment!r}", segment=segment)


class KeyBadVersion(StoreError):
    """A conditional update or removal named another version than the key has."""

    def __init__(self, segment: str) -> None:
        super().__init__(f"a key in table segment {segment!r} has another version", segment=segment)


class Unanswered(StoreError):
    """The reference never answers this request, and the connection stays open."""


class Unmapped(StoreError):
    """The protocol has no reply for this: the connection is closed without one."""


class AttributeLimit(Unmapped):
    """A segment takes no more attributes.

    Attributes:
        limit: the maximum number of attributes; for a transient segment, before an update.
    """

    def __init__(self, segment: str, *, limit: int) -> None:
        super().__init__(f"segment {segment!r} cannot have more than {limit} attributes", segment=segment)
        self.limit = limit


class StoreFull(Unmapped):
    """A request needs more memory than the stores of this process may use.

    Attributes:
        used: bytes in use.
        limit: bytes that may be used.
    """

    def __init__(self, *, used: int, limit: int) -> None:
        super().__init__(f"the store is full: it uses {used} of {limit} bytes of memory; delete or truncate segments")
        self.used = used
        self.limit = limit


class DataDamaged(Unmapped):
    """A file of the data directory does not hold what was written to it, or cannot be read.

    Attributes:
        path: the file.
        offset: where in it the part begins that is damaged; -1 for the file as a whole.
    """

    def __init__(self, path: str, what: str, *, offset: int = -1) -> None:
        where = f" at byte {offset}" if offset >= 0 else ""
        super().__init__(f"{path} is damaged{where}: {what}; `segstore verify` says what else is")
        self.path = path
        self.offset = offset
