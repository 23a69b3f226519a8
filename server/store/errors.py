"""The error tree of the segment store.

The errors are sorted by the reply to the peer:

    StoreError
    ├── SegmentExists        the name is taken or retired
    ├── NoSuchSegment        no such segment here
    ├── SegmentSealed        the segment is sealed: no changes, no more data
    ├── SegmentTruncated     the offset lies before the segment's start, or beyond its end for a truncation
    ├── IndexTruncated       an entry of the index that is needed was truncated away
    ├── BadOffset            a conditional append or table update expected another length
    ├── BadAttribute         an attribute's value is not the one that the update expected
    ├── NotOwner             another store owns the container
    ├── IllegalArgument      answered with the text, the connection stays
    ├── Unsupported          the operation does not exist for this kind of segment
    ├── TableNotEmpty        the table still has entries
    ├── KeyMissing           a conditional table update named a key that is absent
    ├── KeyBadVersion        a conditional table update named another version
    ├── Unanswered           has no reply, and the connection stays
    └── Unmapped             has no reply: the connection closes without one
        ├── AttributeLimit   a segment has the maximum number of attributes
        ├── StoreFull        the store has used up its memory
        └── DataDamaged      a file of the data directory is corrupt

The facts are attributes, so that the table that maps errors to replies never parses text. Follows the mapping in
``PravegaRequestProcessor`` and ``AppendProcessor``.
"""

from __future__ import annotations

from uuid import UUID


class StoreError(Exception):
    """Root of the store's errors.

    Attributes:
        segment: the segment that the error is about; "" if it is about none.
        message: one sentence with the facts.
    """

    def __init__(self, message: str, *, segment: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.segment = segment


class SegmentExists(StoreError):
    """The name cannot be given to a new segment: it is in use, or belonged to a segment that had data or was merged."""

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
    """The segment does not have the offset.

    Attributes:
        start_offset: the first offset that the segment has.
        offset: the requested offset.
    """

    def __init__(self, segment: str, *, start_offset: int, offset: int) -> None:
        super().__init__(f"segment {segment!r} starts at {start_offset} and has no offset {offset}", segment=segment)
        self.start_offset = start_offset
        self.offset = offset


class IndexTruncated(StoreError):
    """The search in an index segment needed an entry whose first bytes were truncated.

    ``segment`` is the indexed segment. The reference answers this with a SegmentTruncated *reply*.
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
    """An invalid argument, answered with ``message`` verbatim; the connection stays."""


class Unsupported(StoreError):
    """The operation does not exist for this kind of segment.

    Attributes:
        operation: its name, such as ``delete_table_segment``; "" to use the caller's.
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
    """The protocol has no reply for this error: the connection is closed without one."""


class AttributeLimit(Unmapped):
    """A segment has the maximum number of attributes.

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
    """A file of the data directory is corrupt or cannot be read.

    Attributes:
        path: the file.
        offset: the offset at which the corrupt part begins; -1 for the whole file.
    """

    def __init__(self, path: str, what: str, *, offset: int = -1) -> None:
        where = f" at byte {offset}" if offset >= 0 else ""
        super().__init__(f"{path} is damaged{where}: {what}; `segstore verify` says what else is")
        self.path = path
        self.offset = offset
