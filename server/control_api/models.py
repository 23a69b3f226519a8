"""Request and response models of the control API, from which its OpenAPI description is made."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from segstore.server.faults import Rule

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


class StoreInfo(BaseModel):
    """A store of this process."""

    store: int = Field(description="Its number.")
    address: str | None = Field(description="Where it listens for clients.")
    admin_address: str | None = Field(description="Where it listens for admin commands; null for nowhere.")
    serving: bool = Field(description="False when it has been stopped.")


class Served(BaseModel):
    """What is served here, and where."""

    segstore: str = Field(description="Version of this project.")
    started_ms: int = Field(description="Since when, in ms since 1970: another number is another run.")
    controller: str | None = Field(description="Where the controller listens; null where there is none.")
    data: str | None = Field(description="The directory that everything is kept in; null for memory.")
    tls: bool = Field(description="Whether the ports for clients speak TLS.")
    containers: int = Field(description="Containers in the cluster.")
    stores: list[StoreInfo]


class StoreCounts(BaseModel):
    """The numbers of a store."""

    store: int
    totals: dict[str, int] = Field(description="What has happened since its start; these only grow.")
    now: dict[str, int] = Field(description="How much there is now.")


class Counts(BaseModel):
    """The numbers of all stores of this process."""

    time_s: float = Field(description="A clock: rates are differences by its differences.")
    stores: list[StoreCounts]


class ContainerInfo(BaseModel):
    """A container and whose it is."""

    container: int
    store: int | None = Field(description="The store of this process that owns it; null if none does.")
    address: str | None = Field(description="Of its owner, here or in another process; null while nobody is known.")
    open: bool = Field(description="Whether its state is here. One that was taken over may be opened on first use.")
    segments: int | None = Field(description="How many it has, those of indexes included; null where it is not open.")


class Containers(BaseModel):
    """All containers, by number."""

    stores: int = Field(description="Stores in this process.")
    movable: bool = Field(description="Whether they can be moved from store to store here.")
    containers: list[ContainerInfo]


class MoveTo(BaseModel):
    """Where a container is to go."""

    model_config = ConfigDict(extra="forbid")

    to: int = Field(ge=0, strict=True, description="The number of a store.")


class RequestInfo(BaseModel):
    """A request and what has become of it."""

    number: int = Field(description="From 1, in the order of receipt, over all stores.")
    store: int
    connection: int = Field(description="The number of its connection.")
    type: str = Field(description="The command, such as READ_SEGMENT.")
    segments: list[str]
    request_id: str | None = Field(description="As text: it has 64 bits, and a number of JavaScript's holds 53.")
    writer_id: UUID | None
    size: int = Field(description="In bytes, with headers.")
    received_ms: int = Field(description="When it came, in ms since 1970.")
    stage: str = Field(description="received, applied, refused or replied: the last that it has reached.")
    reply: str | None = Field(description="The first reply, such as SEGMENT_READ.")
    failure: bool = Field(description="Whether that says that the request failed.")
    latency_ms: float | None = Field(description="From its receipt to its reply.")
    faults: list[str] = Field(description="What rules did with it.")


class LatestRequests(BaseModel):
    """The latest requests, newest first."""

    last: int = Field(description="The number of the last request that is kept; 0 for none.")
    forgotten: int = Field(description="Requests that were kept, and had to go for others.")
    on_demand: bool = Field(description="Whether they are kept only while they are asked for.")
    requests: list[RequestInfo]


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
    writers: list[WriterTotals] = Field(description="By name, then by id; in that order; the first 2,000 of them.")
    writer_count: int = Field(description="How many writers there are, those included that are not listed.")
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

    total: int = Field(description="How many fit, on all pages.")
    segments: list[SegmentSummary]
    next: str | None = Field(description="`after` of the next page, also where long names ended this one; null: none.")


class SegmentDetails(SegmentSummary):
    """A segment. Attributes: those of the reference by number are among `attributes`."""

    last_modified_ms: int
    events: int | None = Field(description="Null where none was ever noted.")
    kind: str = Field(description="stream, table, transient or index.")
    attributes: int = Field(description="How many there are.")
    writers: int = Field(description="Writers that were set up here since the server began.")


class ConnectionInfo(BaseModel):
    """An open connection of a peer."""

    number: int | None = Field(description="From 1, over all stores; null where the store was made with watched=False.")
    store: int
    peer: str
    admin: bool = Field(description="Whether it came in on the port for admin commands.")
    writers: int = Field(description="Writers that are set up on it.")
    waiting_reads: int
    bytes_in: int | None = Field(description="Read from the peer; null where `number` is.")
    bytes_out: int | None = Field(description="Written to it.")
    held_bytes: int = Field(description="Memory that is held for it.")


class Connections(BaseModel):
    """Open connections, sorted by store, number and peer."""

    total: int
    connections: list[ConnectionInfo] = Field(description="The first `limit` of them.")


class Closed(BaseModel):
    """A connection was closed."""

    peer: str


class FaultRule(BaseModel):
    """A rule of faults and how it stands."""

    name: str
    rule: Rule
    matched: int = Field(description="Requests or replies that have fitted.")
    fired: int = Field(description="How often it fired.")
    held: int = Field(description="How much it holds now.")
    enabled: bool = Field(description="Whether it is asked.")


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
