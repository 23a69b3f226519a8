"""What the control API says and takes, as its OpenAPI description has it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from segstore.server.fault_rules import Rule

__all__ = [
    "Added",
    "AllSegments",
    "ConnectionInfo",
    "Connections",
    "FaultRule",
    "FaultRules",
    "Health",
    "Name",
    "Released",
    "SegmentDetails",
    "SegmentSummary",
    "StreamStats",
    "Version",
    "WriterName",
    "WriterNamesPage",
    "WriterTotals",
]

Name = Annotated[str, Field(min_length=1, max_length=255, description="The name of a writer.")]


class Health(BaseModel):
    """That it answers."""

    status: str = "ok"
    stores: int = Field(description="Segment stores in this process.")
    controller: bool = Field(description="Whether it has a controller.")


class Version(BaseModel):
    """What it is."""

    segstore: str = Field(description="Version of this project.")
    wire_version: int = Field(description="The newest wire version that it announces.")
    oldest_compatible_version: int = Field(description="The oldest wire version that it takes.")


class WriterName(BaseModel):
    """A writer's name. Its writer ids are uuid5 of the name and the segment."""

    model_config = ConfigDict(extra="forbid")

    name: Name


class WriterNamesPage(BaseModel):
    """Registered names, in the order of their registration."""

    names: list[str]
    limit: int = Field(description="As many as are kept.")


class WriterTotals(BaseModel):
    """What one writer has appended to a stream since the server began, over all segments."""

    name: str | None = Field(description="Its name, where that is registered.")
    id: UUID | None = Field(description="Its writer id, where no name is known.")
    segments: int = Field(description="Segments for which it was ever set up.")
    connected: int = Field(description="Segments for which it is set up now, each connection counted.")
    events: int
    bytes: int = Field(description="With the envelopes of events.")


class StreamStats(BaseModel):
    """A stream and who writes to it. Transactions and large events count in the stream's totals, not for a writer."""

    scope: str
    stream: str
    segments: int = Field(description="Segments that are there.")
    open_segments: int = Field(description="Those of them that take events.")
    events: int = Field(description="That the segments have taken.")
    bytes: int = Field(description="That the segments hold, from their start offsets.")
    writers: list[WriterTotals] = Field(description="By name, then by id; in that order.")
    uncounted: int = Field(description="Set-ups in these stores for which no count could be kept.")


class SegmentSummary(BaseModel):
    """A segment in a list."""

    name: str
    store: int = Field(description="The store that has it, by its number.")
    container: int
    length: int
    start_offset: int
    sealed: bool


class AllSegments(BaseModel):
    """A page of segments, sorted by name."""

    segments: list[SegmentSummary]
    next: str | None = Field(description="`after` of the next page; null where this is the last.")


class SegmentDetails(SegmentSummary):
    """A segment. Attributes: those of the reference by number are among `attributes`."""

    last_modified_ms: int
    events: int | None = Field(description="Null where none was ever noted.")
    kind: str = Field(description="stream, table, transient or index.")
    attributes: int = Field(description="How many there are.")
    writers: int = Field(description="Writers that were set up here since the server began.")


class ConnectionInfo(BaseModel):
    """An open connection of a peer."""

    store: int
    peer: str
    admin: bool = Field(description="Whether it came in on the port for admin commands.")
    writers: int = Field(description="Writers that are set up on it.")
    waiting_reads: int
    held_bytes: int = Field(description="Memory that is held for it.")


class Connections(BaseModel):
    """Open connections, sorted by store and peer."""

    total: int
    connections: list[ConnectionInfo] = Field(description="The first `limit` of them.")


class FaultRule(BaseModel):
    """A rule of faults and how it stands."""

    name: str
    rule: Rule
    matched: int = Field(description="Requests or replies that have fitted.")
    fired: int = Field(description="How often it fired.")
    held: int = Field(description="How much it holds now.")


class FaultRules(BaseModel):
    """What is to go wrong, in the order in which rules are asked."""

    seed: int
    round_trip_ms: float | dict[int, float]
    rules: list[FaultRule]


class Added(BaseModel):
    """A rule was added."""

    name: str


class Released(BaseModel):
    """What a rule held was let go on."""

    released: int
