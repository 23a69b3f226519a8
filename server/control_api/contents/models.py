"""Response models of the routes that show a cluster's contents. Times are in ms since 1970, sizes in bytes."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from segstore.server.control_api.models import Described
from segstore.server.control_api.steering import TransactionState

Next = Field(description="`after` for the next page; null on the last page.")


class ScopeList(BaseModel):
    """Names of scopes, sorted."""

    scopes: list[str]
    next: str | None = Next


class ScopeDetails(BaseModel):
    """A scope and the number of things in it."""

    scope: str
    created_ms: int
    streams: int = Field(description="Number of its streams, including internal streams.")
    reader_groups: int = Field(description="Number of reader groups that the controller knows of.")
    tables: int = Field(description="Number of its key-value tables.")


class StreamSummary(Described):
    """A stream in a list."""

    scope: str
    stream: str
    created_ms: int
    sealed: bool
    epoch: int = Field(description="The number of the current epoch, which grows with each scale.")
    open_segments: int = Field(description="Number of segments that take writes.")
    transactions: int = Field(description="Number of transactions that have not ended.")
    tags: list[str]


class StreamPage(BaseModel):
    """A page of a scope's streams, sorted by name."""

    streams: list[StreamSummary]
    next: str | None = Next


ScalingKind = Literal["fixed", "kbytes_per_s", "events_per_s"]


class ScalingView(Described):
    """The scaling policy of a stream."""

    kind: ScalingKind
    target_rate: int = Field(description="Per segment; 0 for a fixed number of segments.")
    factor: int = Field(description="Maximum number of segments into which a segment is split.")
    min_segments: int


class RetentionView(Described):
    """The retention policy of a stream."""

    kind: Literal["time", "size"]
    limit: int = Field(description="Minimum to keep, in ms or bytes.")
    maximum: int = Field(description="Maximum to keep if subscribers lag; 0 for no maximum.")


class StreamDetails(StreamSummary):
    """A stream with its configuration."""

    scaling: ScalingView
    retention: RetentionView | None
    rollover_bytes: int
    timestamp_aggregation_timeout_ms: int
    scaling_now: bool = Field(description="Whether segments are being replaced.")
    head: str = Field(description="The position at which it begins.")
    subscribers: list[str] = Field(description="Reader groups that delay its retention.")


class SegmentOfStream(Described):
    """A segment in the history of its stream."""

    id: int
    name: str = Field(description="Its full name in the segment store.")
    number: int
    epoch: int = Field(description="First epoch with the segment.")
    until_epoch: int | None = Field(description="First epoch without the segment; null if the last epoch has it.")
    low: float = Field(description="Lowest position of its routing keys.")
    high: float = Field(description="Position after the highest.")
    created_ms: int
    status: Literal["open", "sealed", "deleted"]
    store: str | None = Field(description="The address of its store; null if no store owns it now.")
    start_offset: int | None = Field(description="Null if its store does not answer, or it is deleted.")
    length: int | None = Field(description="The offset after its last byte; null as `start_offset`.")
    predecessors: list[int] = Field(description="Ids.")
    successors: list[int] = Field(description="Ids.")


class SegmentPage(BaseModel):
    """A page of a stream's segments, sorted by id, which is by epoch."""

    epoch: int = Field(description="The number of the current epoch.")
    segments: list[SegmentOfStream]
    next: int | None = Next


class TailEvent(BaseModel):
    """An event of a segment, or bytes that are not an event."""

    offset: int = Field(description="Offset of its header.")
    size: int = Field(description="Its bytes, without the header.")
    kind: Literal["event", "partial event", "padding", "data"] = Field(description="`data` for bytes without a header.")
    form: str = Field(description="json, text or hex.")
    text: str = Field(description="Its first 4 KiB.")


class SegmentTail(BaseModel):
    """The last events of a segment."""

    id: int
    name: str
    length: int | None = Field(description="The offset after its last byte; null if its store does not answer.")
    events: list[TailEvent]
    left_out: bool = Field(description="Whether the segment has earlier events.")
    why: str = Field(description="Why no events are shown although the segment has bytes; else empty.")


class StreamTail(BaseModel):
    """The last events of a stream's segments. Events of different segments have no order.

    The segments belong to the last epoch with events, among the last ten epochs.
    """

    segments: list[SegmentTail] = Field(description="By key; at most 20.")
    segment_count: int = Field(description="Number of the segments, including those not listed.")


class TransactionSegment(BaseModel):
    """A segment of a transaction."""

    name: str
    length: int | None = Field(description="Null if its store does not answer, or it is merged or deleted.")


class TransactionDetails(TransactionState):
    """A transaction with its segments. After its end, the segments are gone."""

    opened_ms: int | None = Field(description="Null if it has ended.")
    age_ms: int | None = Field(description="Null if it has ended.")
    lease_left_ms: int | None = Field(description="Null if not open. At 0 it is aborted after some slack.")
    writer: str = Field(description="The writer that has named itself at the commit; else empty.")
    epoch: int = Field(description="Epoch in which it was begun.")
    segment_count: int
    bytes: int | None = Field(description="Size of its events; null if not all of its segments were measured.")
    segments: list[TransactionSegment] = Field(description="At most 100.")


class TransactionPage(BaseModel):
    """A page of the transactions that have not ended, sorted by id."""

    transactions: list[TransactionDetails]
    next: str | None = Next


class GroupSummary(BaseModel):
    """A reader group in a list."""

    scope: str
    group: str
    kind: Literal["table", "stream"] = Field(
        description="Where its readers share their state: a table (Rust, Python) or a stream (Java)."
    )


class GroupPage(BaseModel):
    """A page of a scope's reader groups, sorted by name."""

    groups: list[GroupSummary]
    next: str | None = Next


class ReaderView(BaseModel):
    """A reader that is online."""

    reader: str
    segments: int = Field(description="Number of segments that it reads.")
    lag_bytes: int = Field(description="Bytes in these segments that it has not read.")


class GroupSegment(BaseModel):
    """A segment that a group reads or has yet to read."""

    name: str
    reader: str | None = Field(description="The reader to which it is assigned.")
    status: Literal["assigned", "unassigned", "later"] = Field(
        description="`later`: after segments before it, which are not read to their ends."
    )
    offset: int | None = Field(description="Where reading continues; null if not known yet.")
    length: int | None = Field(description="Null if its store does not answer.")
    lag_bytes: int | None = Field(description="Bytes that are not read; null as `length`.")


class GroupDetails(GroupSummary):
    """A reader group: its readers, and its segments with their lags.

    Positions are as last recorded by the readers, every few seconds.
    """

    streams: list[str] = Field(description="Its streams as scope/stream.")
    readers: list[ReaderView] = Field(description="At most 1,000, sorted by name.")
    reader_count: int
    segments: list[GroupSegment] = Field(description="At most 500, sorted by name.")
    segment_count: int
    lag_bytes: int = Field(description="Sum over the listed segments.")


class TableSummary(Described):
    """A key-value table in a list."""

    scope: str
    table: str
    created_ms: int
    partitions: int
    primary_key_bytes: int
    secondary_key_bytes: int


class TablePage(BaseModel):
    """A page of a scope's key-value tables, sorted by name."""

    tables: list[TableSummary]
    next: str | None = Next


class Partition(BaseModel):
    """A partition of a key-value table."""

    id: int
    name: str
    low: float
    high: float
    entries: int | None = Field(description="Number of its entries; null if its store does not answer.")


class TableDetails(TableSummary):
    """A key-value table with its partitions."""

    rollover_bytes: int
    segments: list[Partition] = Field(description="Its partitions by key, at most 100.")
    entries: int | None = Field(description="Number of its entries; null if not all partitions are listed and known.")
