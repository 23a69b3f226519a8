"""The error tree of the segment store.

The classes are sorted by the reply to the peer (`refusal` in `server/connection/requests.py`). The facts are
attributes, so that it never parses text. Follows the mapping in `PravegaRequestProcessor` and `AppendProcessor`.
"""

from __future__ import annotations

from typing import ClassVar
from uuid import UUID


class StoreError(Exception):
    """Root of the store's errors.

    Attributes:
        segment: the segment that the error is about, or "".
        message: one sentence with the facts.
    """

    def __init__(self, message: str, *, segment: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.segment = segment


class _OfSegment(StoreError):
    text: ClassVar[str]

    def __init__(self, segment: str) -> None:
        super().__init__(self.text.format(segment), segment=segment)


class SegmentExists(_OfSegment):
    """The name cannot be given to a new segment: it is in use, or belonged to a segment that had data or was merged."""

    text = "segment {!r} exists already or its name is used up"


class NoSuchSegment(_OfSegment):
    """The segment does not exist: never created, deleted, or merged into another."""

    text = "segment {!r} does not exist"


class SegmentSealed(_OfSegment):
    """The segment is sealed: it takes no changes and no more data."""

    text = "segment {!r} is sealed"


class SegmentTruncated(StoreError):
    """The requested `offset` is outside the segment, which starts at `start_offset`."""

    def __init__(self, segment: str, *, start_offset: int, offset: int) -> None:
        super().__init__(f"segment {segment!r} starts at {start_offset} and has no offset {offset}", segment=segment)
        self.start_offset = start_offset
        self.offset = offset


class IndexTruncated(_OfSegment):
    """The search in an index segment needed an entry whose first bytes were truncated.

    `segment` is the indexed segment. The reference answers this with a SegmentTruncated *reply*.
    """

    text = "the index of segment {!r} is truncated inside an entry"


class BadOffset(StoreError):
    """The segment's `actual` length differs from the length that a conditional request `expected`."""

    def __init__(self, segment: str, *, expected: int, actual: int) -> None:
        super().__init__(f"segment {segment!r} is {actual} bytes long, not {expected}", segment=segment)
        self.expected = expected
        self.actual = actual


class BadAttribute(StoreError):
    """An attribute has the value `previous` (-2^63: absent), not the value that a conditional update expects."""

    def __init__(self, segment: str, *, attribute_id: UUID, previous: int) -> None:
        super().__init__(f"attribute {attribute_id} of segment {segment!r} is {previous}", segment=segment)
        self.attribute_id = attribute_id
        self.previous = previous


class NotOwner(StoreError):
    """The segment's container, with the number `container`, is not owned by this store."""

    def __init__(self, segment: str, *, container: int) -> None:
        super().__init__(f"container {container} of segment {segment!r} is not owned here", segment=segment)
        self.container = container


class IllegalArgument(StoreError):
    """An invalid argument, answered with `message` verbatim; the connection stays."""


class Unsupported(StoreError):
    """The operation, such as `delete_table_segment`, does not exist for this kind of segment."""


class TableNotEmpty(_OfSegment):
    text = "table segment {!r} is not empty"


class KeyMissing(_OfSegment):
    """A conditional update or removal named a key that the table does not have."""

    text = "a key that an update is conditional on is not in table {!r}"


class KeyBadVersion(_OfSegment):
    """A conditional update or removal named another version than the key has."""

    text = "a key in table segment {!r} has another version"


class Unanswered(StoreError):
    """The reference never answers this request, and the connection stays open."""


class Unmapped(StoreError):
    """The protocol has no reply for this error: the connection is closed without a reply."""


class AttributeLimit(Unmapped):
    """A segment has `limit` attributes, the maximum; for a transient segment, before an update."""

    def __init__(self, segment: str, *, limit: int) -> None:
        super().__init__(f"segment {segment!r} cannot have more than {limit} attributes", segment=segment)
        self.limit = limit


class StoreFull(Unmapped):
    """A request needs more memory than the stores of this process may use: `used` of `limit` bytes are in use."""

    def __init__(self, *, used: int, limit: int) -> None:
        super().__init__(f"the store is full: it uses {used} of {limit} bytes of memory; delete or truncate segments")
        self.used = used
        self.limit = limit


class DataDamaged(Unmapped):
    """A file of the data directory is corrupt from `offset` on, -1 for all of it, or cannot be read."""

    def __init__(self, path: str, what: str, *, offset: int = -1) -> None:
        where = f" at byte {offset}" if offset >= 0 else ""
        super().__init__(f"{path} is damaged{where}: {what}; `segstore verify` says what else is")
        self.path = path
        self.what = f"{what}, at byte {offset}" if offset >= 0 else what
        self.offset = offset
