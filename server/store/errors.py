"""The error tree of the store: every way in which a segment, a table or a container refuses.

    StoreError
    ├── SegmentExists      → SegmentAlreadyExists
    ├── NoSuchSegment      → NoSuchSegment
    ├── SegmentSealed      → SegmentIsSealed
    ├── SegmentTruncated   → SegmentIsTruncated; also a table's length that is not the expected one
    ├── TableNotEmpty      → TableSegmentNotEmpty
    ├── KeyMissing         → TableKeyDoesNotExist
    ├── KeyBadVersion      → TableKeyBadVersion
    ├── Unsupported        → OperationUnsupported
    ├── IllegalArgument    → ErrorMessage, its message as the reference words it
    ├── Unmapped           no reply: the reference knows none and closes the connection
    └── Unanswered         no reply, and the connection stays: the reference waits for what never comes

The store never words a reply; one table on the server's side turns these into replies. Facts are attributes.
"""

from __future__ import annotations

__all__ = [
    "IllegalArgument",
    "KeyBadVersion",
    "KeyMissing",
    "NoSuchSegment",
    "SegmentExists",
    "SegmentSealed",
    "SegmentTruncated",
    "StoreError",
    "TableNotEmpty",
    "Unanswered",
    "Unmapped",
    "Unsupported",
]


class StoreError(Exception):
    """Root of the store's errors.

    Attributes:
        message: one sentence.
        segment: full name of the segment, "" where the error is not about one.
        offset: the offset asked for, -1 where there was none.
        start_offset: what the store holds instead of ``offset``: the first offset kept, or a table's length.
    """

    def __init__(self, message: str, *, segment: str = "", offset: int = -1, start_offset: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.segment = segment
        self.offset = offset
        self.start_offset = start_offset


class SegmentExists(StoreError):
    """The name is taken, or was taken by a segment that held data."""


class NoSuchSegment(StoreError):
    """No segment of that name, or no longer."""


class SegmentSealed(StoreError):
    """The segment takes no more changes."""


class SegmentTruncated(StoreError):
    """The offset lies outside of what the segment holds, or is not a table's expected length."""


class TableNotEmpty(StoreError):
    """The table was to be deleted only if empty."""


class KeyMissing(StoreError):
    """A key is given with a version and the table does not hold it."""


class KeyBadVersion(StoreError):
    """The table holds a key in another version than the one given."""


class Unsupported(StoreError):
    """The operation does not exist for this kind of segment."""


class IllegalArgument(StoreError):
    """An argument that the reference answers with an ErrorMessage; ``message`` is its text."""


class Unmapped(StoreError):
    """The reference has no reply for this and closes the connection; ``message`` is for the log alone."""


class Unanswered(StoreError):
    """The reference never replies to this and keeps the connection; ``message`` is for the log alone."""
