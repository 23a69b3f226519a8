"""Settings of a segment store, checked once at the edge.

Frozen, keyword-only, units in the names. Where a default follows the reference, the docstring says whose it is.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from segstore.server.store import MAX_ATTRIBUTES
from segstore.wire import MAX_FRAME_BYTES, OLDEST_COMPATIBLE_VERSION, WIRE_VERSION

_MIB = 1024 * 1024


class LimitSettings(BaseModel):
    """What peers may hold, and for how long.

    max_frame_bytes: longest frame taken, header included (`WireCommands.MAX_WIRECOMMAND_SIZE`).
    connection_outstanding_bytes: replies that may wait for one peer to read them; above it, the peer's requests are
        neither read nor carried out. One reply more than this can wait, and what one read brought is kept for later.
        The reference bounds what one connection has in flight at 128 MiB.
    total_outstanding_bytes: what is held for all peers together: replies that wait, frames and append blocks that
        have come in part, requests kept for later, reads that wait at a tail. Above half of it, the replies that may
        wait for one peer shrink to its share; above it, one of the largest is closed. It is passed by no
        more than what the replies to one read of one connection take (1 MiB and one reply).
    connection_waiting_reads: reads at the tail of a segment that may wait for one peer; one more closes it.
    connection_writer_bytes: memory that the names and numbers of one peer's writers may take; more closes it.
    connection_transient_segments: transient segments of one peer that may exist at a time; one more closes it.
    segment_attributes: extended attributes of a segment, including one for each writer that was ever set up; a request
        for one more closes the connection. The reference has no bound: it writes them to its storage.
    max_memory_bytes: what all stores of a process hold in memory, estimated: bytes, segments, attributes, keys of
        tables, writers, and the state of a controller beside them. With a data directory the bytes are not counted. A
        request that needs more closes its connection, and a controller call that needs more is refused; reads,
        truncations, merges and deletions still work. None for no bound.
    request_keys: keys, entries or attributes that one request may name; more are refused as an illegal argument. The
        official client sends at most 256 (`TableSegment.MAXIMUM_BATCH_KEY_COUNT`); the reference's store bounds only
        their bytes. A request with a list of more than 16 times as many is not read, and its connection is closed.
    request_segments: segments that one request may merge; more are refused as an illegal argument. The reference's
        controller sends at most 100 (`CommitRequestHandler`).
    max_connections: one more replaces the oldest connection that has requested nothing for at least a second; if there
        is none, it is closed at once. None for the store's share of the file descriptors (`descriptors`).
    silent_timeout_s: when three quarters of these are open, a connection that has requested nothing since it was
        opened, for this long, is closed.
    first_frame_timeout_s: a peer that has sent no whole frame by then is closed; a TLS handshake may take as long.
    frame_timeout_s: a frame or an append block that was begun must be whole by then, or its connection is closed.
        Bytes that come meanwhile do not prolong it; time in which the store does not read the peer does not count.
    stalled_peer_timeout_s: a peer that has read nothing of its waiting replies for so long is closed.
    linger_s: a connection that was closed has so long to take the replies that were written before, then it is cut.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_frame_bytes: int = Field(default=MAX_FRAME_BYTES, ge=8, le=MAX_FRAME_BYTES)
    connection_outstanding_bytes: int = Field(default=8 * _MIB, gt=0)
    total_outstanding_bytes: int = Field(default=512 * _MIB, gt=0)
    connection_waiting_reads: int = Field(default=10_000, gt=0)
    connection_writer_bytes: int = Field(default=8 * _MIB, gt=0)
    connection_transient_segments: int = Field(default=1000, gt=0)
    segment_attributes: int = Field(default=MAX_ATTRIBUTES, gt=0)
    max_memory_bytes: int | None = Field(default=None, gt=0)
    request_keys: int = Field(default=1024, gt=0)
    request_segments: int = Field(default=256, gt=0)
    max_connections: int | None = Field(default=None, gt=0)
    silent_timeout_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    first_frame_timeout_s: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    frame_timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    stalled_peer_timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    linger_s: float = Field(default=5.0, gt=0, allow_inf_nan=False)


class StoreSettings(BaseModel):
    """One segment store.

    host, port: where the data port listens; port 0 picks a free one.
    admin_port: where the admin commands are served; None for nowhere.
    containers: how many there are in the cluster (`pravegaservice.container.count`).
    own: those that this store owns; None for all.
    auth_key: key of the delegation tokens; None for no authentication.
    strict_auth: CreateTransientSegment needs a token too, which the reference does not ask.
    strict_request_ids: the refusal of a ReadSegment's token carries the request id, where the reference puts the
        read's offset (seed 36.30).
    strict_transient_attributes: a transient segment takes no attribute but its writer's event number, as PDP-43A has
        it; the reference allows 16 (seed 43.3).
    stack_traces: failure replies of the data port carry them; those of the admin port always do, as in the reference.
    wire_version: the newest version that Hello announces; frames are read and written as it did.
    strict_wire_version: bytes behind the last field that the version knew close the connection, as they did up to
        version 8 (Pravega 0.5), once the command itself has been carried out; they are ignored otherwise.
    long_poll_s: a read at the tail is answered empty after this time. The reference waits for ever; the Rust client
        gives up after 30 s, so the default stays below.
    reuse_names: a segment that held data may be created again under its name.
    transient_idle_s: a transient segment that was not used for so long is deleted.
    tls_cert, tls_key: PEM files; both or neither.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)  # the input may contain the key

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=12345, ge=0, le=65535)
    admin_port: int | None = Field(default=None, ge=0, le=65535)
    containers: int = Field(default=4, gt=0)
    own: frozenset[int] | None = None
    auth_key: SecretStr | None = Field(default=None, min_length=1)
    strict_auth: bool = False
    strict_request_ids: bool = False
    strict_transient_attributes: bool = False
    stack_traces: bool = False
    wire_version: int = Field(default=WIRE_VERSION, ge=OLDEST_COMPATIBLE_VERSION, le=WIRE_VERSION)
    strict_wire_version: bool = False
    long_poll_s: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    reuse_names: bool = False
    transient_idle_s: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: LimitSettings = LimitSettings()

    @model_validator(mode="after")
    def _fits_together(self) -> StoreSettings:
        if self.own is not None and (outside := sorted(each for each in self.own if not 0 <= each < self.containers)):
            raise ValueError(f"own names container {outside[0]}, but there are {self.containers}, counted from 0")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        return self

    @property
    def signing_key(self) -> str | None:
        """`auth_key` as plain text."""
        return None if self.auth_key is None else self.auth_key.get_secret_value()
