"""Request and response models of the control API, from which its OpenAPI description is made."""

from __future__ import annotations

from typing import Any, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from segstore.server.config import PlainName
from segstore.server.faults import RoundTrip, Rule
from segstore.server.recordings import DEFAULT_BYTES, MOST_BYTES
from segstore.server.toxics import ActiveToxic


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Described(BaseModel):
    """A description of an object of the server."""

    @classmethod
    def of(cls, described: object, **fields: Any) -> Self:
        """Describes an object: by the given fields, and by its attributes with the names of all other fields."""
        return cls(**{name: getattr(described, name) for name in cls.model_fields.keys() - fields}, **fields)


class Health(BaseModel):
    """Health of the server."""

    status: str = "ok"
    stores: int = Field(description="Number of segment stores in this process.")
    controller: bool = Field(description="Whether this process answers controller calls.")


class ServerVersion(BaseModel):
    """Versions of the server."""

    segstore: str = Field(description="Version of this project.")
    wire_version: int = Field(description="The newest wire version that it announces; on a tap, that it decodes.")
    oldest_compatible_version: int = Field(description="The oldest wire version that it accepts.")


class StoreInfo(Described):
    """A store of this process, or a store for which a tap has a port."""

    store: int = Field(description="Its number.")
    address: str | None = Field(description="Its address for clients.")
    admin_address: str | None = Field(description="Its address for admin commands, or null.")
    upstream: str | None = Field(description="The store's own address, on a tap; null for a store of this process.")
    serving: bool = Field(description="False if it is stopped.")


class ServerInfo(BaseModel):
    """The services of this process, and their addresses."""

    segstore: str = Field(description="Version of this project.")
    started_ms: int = Field(description="Start time in ms since 1970, which differs between runs.")
    controller: str | None = Field(description="The controller's address, or null.")
    capabilities: list[str] = Field(
        description="Features of this server: tap, stores, segments, containers, counters, controller, faults, toxics, "
        "requests, send, recordings, snapshots."
    )
    data: str | None = Field(description="The data directory; null for memory, and on a tap.")
    tls: bool = Field(description="Whether the ports for clients use TLS.")
    containers: int = Field(description="Number of containers in the cluster; 0 on a tap.")
    stores: list[StoreInfo]


class StoreCounts(BaseModel):
    """Counters of a store."""

    store: int
    totals: dict[str, int] = Field(description="Totals since its start, which only grow.")
    now: dict[str, int] = Field(description="Current values.")


class Counts(BaseModel):
    """Counters of all stores of this process."""

    time_s: float = Field(description="A monotonic clock, to compute rates from differences.")
    stores: list[StoreCounts]


class ContainerInfo(BaseModel):
    """A container and its owner."""

    container: int
    store: int | None = Field(description="The store of this process that owns it; null if none does.")
    address: str | None = Field(description="Its owner's address, in this or another process; null if unknown.")
    open: bool = Field(description="Whether its state is loaded. After a take-over it may be opened on first use.")
    segments: int | None = Field(
        default=None, description="Number of its segments, without indexes; null if it is not open."
    )
    index_segments: int | None = Field(default=None, description="Number of its index segments.")


class Containers(BaseModel):
    """All containers, by number."""

    stores: int = Field(description="Number of stores in this process.")
    movable: bool = Field(description="Whether containers can be moved between stores here.")
    containers: list[ContainerInfo]


class MoveTo(RequestBody):
    """The store to which a container is moved."""

    to: int = Field(ge=0, strict=True, description="The number of a store.")


class RequestInfo(Described):
    """A request and its outcome."""

    number: int = Field(description="From 1, in the order of receipt, over all connections; calls included.")
    store: int | None = Field(description="The store of this process that received it; null if it was another.")
    connection: int = Field(description="The number of its connection.")
    role: str = Field(description="`controller` for requests of the controller in this process; else empty.")
    kind: str = Field(description="frame, call of the controller, or bytes that form no frame.")
    type: str = Field(description="The command, such as READ_SEGMENT; the method of a call; BYTES.")
    segments: list[str]
    streams: list[str] = Field(description="Streams that a call names, as scope/stream, and scopes.")
    request_id: str | None = Field(description="As text: it has 64 bits, and a JavaScript number holds only 53.")
    writer_id: UUID | None
    size: int = Field(description="In bytes, with headers; for an append, including its block.")
    received_ms: int = Field(description="Time of receipt, in ms since 1970.")
    stage: str = Field(
        description="The last stage it has reached: received, applied, refused or replied; given up, if the client "
        "closed the connection while a read waited for data."
    )
    reply: str | None = Field(description="The first reply, such as SEGMENT_READ.")
    failure: bool = Field(description="Whether the reply is a failure.")
    latency_ms: float | None = Field(description="Time from receipt to reply.")
    faults: list[str] = Field(description="Actions of the fault rules that fired.")


class LatestRequests(BaseModel):
    """The latest requests, newest first."""

    last: int = Field(description="The number of the last request; 0 for none.")
    forgotten: int = Field(description="Number of older requests that were discarded.")
    requests: list[RequestInfo]


class FrameField(Described):
    """A range of bytes of a frame with one meaning."""

    offset: int = Field(description="From the start of the frame.")
    length: int
    name: str
    value: str = Field(description="As text; payloads in hex. A long value is cut.")
    note: str
    kind: str = Field(description="plain, text or data.")


class Frame(BaseModel):
    """A frame of a request or its reply."""

    part: str = Field(description="request or reply.")
    type: str
    size: int = Field(description="In bytes, with its header.")
    hex: str = Field(description="Its first 2 KiB.")
    fields: list[FrameField]
    left_out: int = Field(description="Number of fields that are not listed.")
    error: str = Field(description="Why it cannot be decoded; empty if it can.")


class Payload(BaseModel):
    """An event, or other bytes, in the data of a request or reply."""

    part: str = Field(description="request or reply.")
    kind: str = Field(description="event, key, value, message; bytes of no whole event; more: the rest after 50.")
    offset: int = Field(description="From the start of the data.")
    size: int
    form: str = Field(description="json, text or hex.")
    text: str = Field(description="Its first 4 KiB.")
    hex: str = Field(description="Its first 512 bytes.")


class Moment(BaseModel):
    """A step in the life of a request."""

    at_ms: float | None = Field(description="In ms since 1970; null if unknown.")
    what: str


class Neighbour(BaseModel):
    """A record of the same connection."""

    number: int | None = Field(description="The number of a request; null for other records.")
    at_ms: float
    direction: str
    type: str
    size: int
    about: str = Field(description="Its segments or streams, or the facts of an opening or closing record.")
    opens: bool = Field(description="Whether it is a request, which can be queried.")
    itself: bool = Field(description="Whether it is the request in question.")


class RequestDetail(RequestInfo):
    """A request in detail. Long values are truncated."""

    peer: str = Field(description="Address of the client.")
    frames: list[Frame] = Field(description="The request, of an append in two frames, then its reply.")
    payload: list[Payload]
    timeline: list[Moment]
    neighbours: list[Neighbour] = Field(description="Up to 10 records before and after it on its connection.")
    fixture: list[str] = Field(description="The frames as lines of a fixture; empty above 128 KiB.")


class SentAgain(BaseModel):
    """The replies to a recorded request that was sent again."""

    connection: int | None = Field(description="The number of the connection, which is closed now; null if unknown.")
    replies: list[Frame] = Field(description="All received replies, including the reply to the handshake.")
    ended: str = Field(description="Why the request has no reply; empty if it has a reply.")


class WriterName(RequestBody):
    """A writer's name. Its writer ids are uuid5 of the name and the segment."""

    name: str = Field(min_length=1, max_length=255, description="The name of a writer.")


class WriterNamesPage(BaseModel):
    """Registered names, in the order of their registration."""

    names: list[str]
    limit: int = Field(description="Maximum number of names.")


class WriterTotals(BaseModel):
    """Appends of one writer to a stream since the server's start, over all segments."""

    name: str | None = Field(description="Its name, if registered.")
    id: UUID | None = Field(description="Its writer id, if its name is unknown.")
    segments: int = Field(description="Number of segments for which it was ever set up.")
    connected: int = Field(description="Number of its current set-ups, over all segments and connections.")
    events: int
    bytes: int = Field(description="Including the headers of events.")


class StreamStats(BaseModel):
    """A stream and its writers. Transactions and large events count in the stream's totals, not for a writer."""

    scope: str
    stream: str
    segments: int = Field(description="Number of existing segments.")
    open_segments: int = Field(description="Number of segments that are not sealed.")
    events: int = Field(description="Number of events appended to these segments.")
    bytes: int = Field(description="Size of these segments, from their start offsets.")
    writers: list[WriterTotals] = Field(description="Sorted: first by name, then those known by id; at most 2,000.")
    writer_count: int = Field(description="Number of writers, including those not listed.")
    uncounted: int = Field(description="Number of set-ups in these stores that are not counted, for lack of space.")


class SegmentSummary(Described):
    """A segment in a list."""

    name: str
    store: int = Field(description="The number of the store that owns it.")
    container: int
    length: int
    start_offset: int
    sealed: bool


class AllSegments(BaseModel):
    """A page of segments, sorted by name."""

    total: int = Field(description="Number of matches on all pages.")
    segments: list[SegmentSummary]
    next: str | None = Field(description="`after` for the next page, even after a short page; null on the last page.")


class SegmentDetails(SegmentSummary):
    """A segment in detail."""

    last_modified_ms: int
    events: int | None = Field(description="Null if events were never counted.")
    kind: str = Field(description="stream, table, transient or index.")
    attributes: int = Field(description="Number of attributes, including the reference's own.")
    writers: int = Field(description="Number of writers set up here since the server's start.")


class ConnectionInfo(Described):
    """An open connection of a peer."""

    number: int | None = Field(description="From 1, over all stores; null without fault rules and kept traffic.")
    store: int
    peer: str
    admin: bool = Field(description="Whether it uses the admin port.")
    writers: int | None = Field(description="Number of writers set up on it; null on a tap.")
    waiting_reads: int | None = Field(description="Number of reads that wait for data; null on a tap.")
    bytes_in: int = Field(description="Bytes read from the peer.")
    bytes_out: int = Field(description="Bytes written to the peer.")
    held_bytes: int = Field(description="Memory held for it, in bytes.")


class Connections(BaseModel):
    """Open connections, sorted by store, number and peer."""

    total: int
    connections: list[ConnectionInfo] = Field(description="The first `limit` connections.")


class ClosedConnections(BaseModel):
    """The closed connections."""

    connections: int = Field(description="Number of connections that were closed.")


class ClosedConnection(BaseModel):
    """The closed connection."""

    peer: str


class FaultRule(Described):
    """A fault rule and its counts."""

    name: str
    rule: Rule
    matched: int = Field(description="Number of requests or replies that matched.")
    fired: int = Field(description="Number of times it fired.")
    held: int = Field(description="Number of requests and replies it holds now.")
    enabled: bool = Field(description="Whether it is enabled.")


class FaultRules(BaseModel):
    """The fault rules, in evaluation order."""

    seed: int
    round_trip_ms: RoundTrip
    rules: list[FaultRule]


class RoundTripTime(RequestBody):
    """The minimum delay of every reply."""

    round_trip_ms: RoundTrip = Field(description="One number, or an object from store numbers to numbers.")


class DecisionInfo(Described):
    """One firing of a rule."""

    number: int = Field(description="From 1, in order.")
    rule: str
    action: str
    nth: int = Field(description="Number of matches of the rule so far, including this.")
    request: int = Field(description="The number of the request in the order of receipt.")
    store: int
    connection: int
    direction: str = Field(description="request or reply.")
    type: str
    segments: list[str]
    request_id: str | None = Field(description="As text: it has 64 bits.")
    event_number: int | None = Field(description="Of an append, else null.")


class Decisions(BaseModel):
    """Decisions of the fault rules, oldest first. Without times, so that two runs can be compared."""

    last: int = Field(description="Number of the last decision so far, or 0.")
    forgotten: int = Field(description="Number of older decisions that were discarded.")
    decisions: list[DecisionInfo]


class Unmatched(BaseModel):
    """Rules that have done nothing."""

    unmatched: list[str] = Field(
        description="A text for each rule that never matched or never fired; further lines are the nearest requests."
    )


class ActiveToxics(BaseModel):
    """The toxics, in the order in which they apply."""

    toxics: list[ActiveToxic]


class Added(BaseModel):
    """The added rule or toxic."""

    name: str


class Released(BaseModel):
    """Number of requests and replies that were released."""

    released: int


class NewRecording(RequestBody):
    """A recording to start."""

    name: PlainName = Field(
        default="",
        max_length=100,
        description="Made up if omitted. Without slashes, backslashes or control characters, and not . or ..",
    )
    max_bytes: int = Field(
        default=DEFAULT_BYTES,
        ge=1,
        le=MOST_BYTES,
        strict=True,
        description="Size at which the recording ends by itself.",
    )


class RecordingInfo(Described):
    """A recording of the traffic."""

    name: str
    running: bool
    records: int = Field(description="Number of its records: frames, calls, and ends of connections.")
    size: int = Field(description="In bytes, as a capture.")
    max_bytes: int
    started_ms: int = Field(description="Start time in ms since 1970.")
    stopped_ms: int | None = Field(description="When it was stopped or ended; null while it runs.")
    problem: str = Field(description="Why it has ended by itself; empty if it has not.")


class RecordingList(BaseModel):
    """The recordings, in the order in which they were started."""

    recordings: list[RecordingInfo]


class ReplayProblem(BaseModel):
    """A request that the trace of a replay does not answer."""

    number: int = Field(description="From 1, in the order of occurrence.")
    connection: int | None = Field(description="The number of the client's connection; null for a controller call.")
    request: str = Field(description="The command, such as READ_SEGMENT, or the method of a call.")
    expected: str | None = Field(description="The next request in the trace; null if requests may come in any order.")
    detail: str = Field(description="A sentence with the fields that differ; further lines are the nearest requests.")


class ReplayProblems(BaseModel):
    """A page of the problems of a replay, oldest first."""

    total: int = Field(description="Number of problems so far.")
    problems: list[ReplayProblem]
    next: int | None = Field(description="`after` for the next page; null on the last page.")
