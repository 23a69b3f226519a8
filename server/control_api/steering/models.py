"""Request and response models of the steering routes."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from fastapi import Path
from pydantic import BaseModel, Field, model_validator

from segstore.server.control_api.models import Described, RequestBody
from segstore.server.control_api.problems import ApiProblem
from segstore.server.store import MAX_FIXED_KEY_BYTES

MOST_EVENTS = 10_000
MOST_SEGMENTS = 1_000

Scope = Annotated[str, Path(max_length=255, description="The name of a scope.")]
Stream = Annotated[str, Path(max_length=255, description="The name of a stream.")]
Table = Annotated[str, Path(max_length=255, description="The name of a key-value table.")]
Group = Annotated[str, Path(max_length=255, description="The name of a reader group.")]
Transaction = Annotated[UUID, Path(description="The id of a transaction.")]


class StreamSettings(RequestBody):
    """Settings of a new stream."""

    segments: int = Field(default=1, ge=1, le=MOST_SEGMENTS, strict=True, description="Number of its segments.")


class OpenSegment(BaseModel):
    """A segment that takes writes."""

    id: int
    name: str = Field(description="Its full name in the segment store.")
    low: float = Field(description="Lowest position of its routing keys.")
    high: float = Field(description="Position after the highest.")


class StreamInfo(BaseModel):
    """A stream after a change."""

    scope: str
    stream: str
    sealed: bool
    epoch: int = Field(description="The number of the current epoch, which grows with each scale.")
    segments: list[OpenSegment] = Field(description="The segments that take writes, by key.")


_Position = Annotated[float, Field(strict=True)]


class ScaleTo(RequestBody):
    """New segments: either a number, for equal ranges of all keys, or the segments to seal and the new ranges."""

    segments: int | None = Field(default=None, ge=1, le=MOST_SEGMENTS, strict=True)
    seal: list[Annotated[int, Field(strict=True)]] | None = Field(
        default=None, min_length=1, max_length=MOST_SEGMENTS, description="Ids of open segments."
    )
    ranges: list[tuple[_Position, _Position]] | None = Field(default=None, min_length=1, max_length=MOST_SEGMENTS)

    @model_validator(mode="after")
    def _check_one_form(self) -> Self:
        listed = self.seal is not None and self.ranges is not None
        if (self.segments is None) is not listed or (self.seal is None) is not (self.ranges is None):
            raise ValueError("either segments is needed, or seal and ranges")
        return self


class TruncateAt(RequestBody):
    """A position in the stream; events before it are removed."""

    position: str = Field(max_length=32_768, description="`next` of a page of events; not beyond the end of a segment.")


class Content(RequestBody):
    """Bytes, in exactly one form of three."""

    text: str | None = Field(default=None, description="Text, stored in UTF-8.")
    value: Any = Field(default=None, alias="json", description="A JSON value, stored as compact JSON in UTF-8.")
    base64: str | None = Field(default=None, description="Bytes in Base64.")

    @model_validator(mode="after")
    def _check_one_form(self) -> Self:
        given = self.model_fields_set & {"text", "value", "base64"}
        if len(given) != 1 or (given != {"value"} and getattr(self, next(iter(given))) is None):
            raise ValueError("exactly one of text, json and base64 is needed")
        return self

    def data(self, where: str) -> bytes:
        """Returns the bytes. Raises ApiProblem, which names `where`."""
        try:
            if self.base64 is not None:
                return base64.b64decode(self.base64, validate=True)
            if self.text is not None:
                return self.text.encode()
            return json.dumps(self.value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
        except binascii.Error as error:
            raise ApiProblem(422, f"{where}.base64: this is not Base64", f"{where}.base64") from error
        except UnicodeEncodeError as error:
            raise ApiProblem(422, f"{where}: a lone surrogate cannot be stored in UTF-8", where) from error
        except (ValueError, RecursionError) as error:
            what = "it is nested too deeply" if isinstance(error, RecursionError) else "NaN and infinity are not JSON"
            raise ApiProblem(422, f"{where}.json: {what}", f"{where}.json") from error


class NewEvent(Content):
    """An event to write."""

    routing_key: str = Field(default="", max_length=4_096, description='Decides the segment; "" if omitted.')


class NewEvents(RequestBody):
    """Events to write, in order."""

    events: list[NewEvent] = Field(
        min_length=1,
        max_length=MOST_EVENTS,
        examples=[[{"json": {"order": 1}, "routing_key": "customer-7"}, {"text": "hello"}]],
    )


class WrittenEvent(BaseModel):
    """Where an event was written."""

    segment: str
    offset: int


class WrittenEvents(BaseModel):
    """Where the events were written, in the order given."""

    events: list[WrittenEvent]


class Shown(BaseModel):
    """Bytes in one form of four."""

    text: str | None = None
    value: Any = Field(default=None, alias="json")
    base64: str | None = None
    hex: str | None = None


class StoredEvent(WrittenEvent, Shown):
    """An event with its content."""

    size: int = Field(description="Its bytes, without the header.")


class EventPage(BaseModel):
    """Events of a stream. Events of a routing key are in order, also across pages and scales."""

    events: list[StoredEvent]
    next: str = Field(description="The position after the last event: `from` of the next page.")
    at_end: bool = Field(description="Whether there are no more events now.")


class NewTransaction(RequestBody):
    """Settings of a new transaction."""

    lease_ms: int = Field(default=30_000, ge=1, strict=True, description="It is aborted if it is open for longer.")


class TransactionState(BaseModel):
    """A transaction."""

    id: UUID
    status: Literal["OPEN", "COMMITTING", "COMMITTED", "ABORTING", "ABORTED"]


class TableSettings(RequestBody):
    """Settings of a new key-value table."""

    partitions: int = Field(default=1, ge=1, le=MOST_SEGMENTS, strict=True)
    primary_key_bytes: int = Field(
        ge=1,
        le=MAX_FIXED_KEY_BYTES,
        strict=True,
        description="Length of every primary key. Both lengths are at most 256 bytes.",
    )
    secondary_key_bytes: int = Field(
        default=0, ge=0, lt=MAX_FIXED_KEY_BYTES, strict=True, description="Length of every secondary key."
    )

    @model_validator(mode="after")
    def _check_key_sizes(self) -> Self:
        size = self.primary_key_bytes + self.secondary_key_bytes
        if size > MAX_FIXED_KEY_BYTES:
            raise ValueError(f"primary and secondary key together have at most {MAX_FIXED_KEY_BYTES} bytes, not {size}")
        return self


class NewEntry(RequestBody):
    """A table entry to write. The key is the primary key, followed by the secondary key, if any."""

    key: Content
    value: Content


class NewEntries(RequestBody):
    """Table entries to write. The entries of a partition are written together."""

    entries: list[NewEntry] = Field(
        min_length=1, max_length=MOST_EVENTS, examples=[[{"key": {"text": "k1"}, "value": {"json": {"count": 1}}}]]
    )


class TableEntryInfo(BaseModel):
    """A table entry."""

    key: Shown
    value: Shown
    version: int = Field(description="It changes with each update.")


class EntryPage(BaseModel):
    """Entries of a table, by partition and then by key."""

    entries: list[TableEntryInfo]
    next: str | None = Field(description="`after` for the next page; null on the last page.")


class NewSnapshot(Described):
    """A snapshot of all data."""

    name: str
    segments: int = Field(description="Number of segments, including indexes.")
    size: int = Field(description="Its bytes in memory.")
    taken_ms: int = Field(description="When it was taken, in ms since 1970.")


class SnapshotList(BaseModel):
    """The snapshots."""

    snapshots: list[NewSnapshot]


class RequestLogEnd(BaseModel):
    """The log of requests."""

    last: int = Field(description="The number of the last kept request: `since` of a test that begins now.")


class Matched(BaseModel):
    """The last of the requests that were waited for."""

    number: int = Field(description="Its number among the kept requests; the list of requests uses other numbers.")
    type: str
    segments: list[str]


class Verified(BaseModel):
    """The verified number."""

    count: int = Field(description="Number of requests that matched and have reached the stage.")


class Held(BaseModel):
    """The number of requests and replies that a rule holds."""

    held: int = Field(description="Number of requests and replies it holds now.")
