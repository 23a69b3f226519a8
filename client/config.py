"""Client settings, validated once at construction.

Settings are frozen and keyword-only, with units in their names; no time is above 2^31 - 1 ms, 24 days.
`ClientSettings.from_environment()` reads each from `SEGSTORE_CLIENT_` plus its name in capitals, such as
SEGSTORE_CLIENT_MAX_CONNECTIONS_PER_STORE=4. A `Backoff` is given as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from segstore.client.control_api import check_url
from segstore.client.retry import LONGEST_MS, Backoff
from segstore.wire import MAX_FRAME_BYTES
from segstore.wire.names import MAX_INT32

ENVIRONMENT_PREFIX = "SEGSTORE_CLIENT_"

PoolPolicy = Literal["fewest_flows", "least_busy"]

_MIB = 1024 * 1024
_MOST: Final = 1 << 60
"""Sums of such numbers fit the 64-bit integers of the compiled modules."""


class ClientSettings(BaseModel):
    """Settings of a client. Seed ids in parentheses are the sources of defaults.

    Connections
        max_connections_per_store: maximum number of pooled connections to one store; 10 (36.5).
        pool_policy: which connection a new user gets: the one with the fewest flows (36.6), or with the fewest bytes in
            flight (36.10).
        enable_connection_pooling: False gives each writer and reader its own connection, without flows (36.9).
        idle_connection_s: `prune` closes a connection that carried no flow for this long.
        keep_alive_first_s, keep_alive_s: the first KeepAlive is sent after 20 s, the next every 10 s (36.13).
        write_buffer_bytes: above this many bytes in the socket's buffer, writers on the connection are paused.
        max_frame_bytes: longest frame accepted, header included.
    Connection set-up (601; TCP, TLS and Hello, or gRPC until the channel is ready)
        socket_connection_setup_timeout_ms: 10,000; also known as connections_setup_timeout_ms (601.1).
        socket_connection_setup_timeout_max_ms: 30,000; the timeout doubles with each consecutive failure, ±20 %, and
            never exceeds this (601.2).
        reconnect_backoff: per node 50 ms to 1 s, doubling, ±20 % (601.6).
        least_recently_tried: among disconnected controllers, try the one tried longest ago (as Kafka shipped) rather
            than the one with the fewest failed attempts (601.5).
    Requests
        request_timeout_ms: for one request and its reply; 30,000 (Kafka's `request.timeout.ms`).
        read_timeout_ms: for a read, which blocks at the tail; longer than the 20 s after which a segstore store replies
            (the reference has no such limit). On expiry the client asks for the segment's end: if there is nothing to
            read it keeps waiting, else it repeats the read with a new request id.
        retry: for writers and requests: 1 ms ×10, at most 20 s, 10 attempts (36.26).
        call_timeout_ms: for all attempts of a request; 60,000 (Kafka's `default.api.timeout.ms`), and never less than
            the limit for one attempt.
        refused_timeout_ms: replaces call_timeout_ms if all controllers refuse connections, or the only store does and
        there is no
            controller; 10,000. A store that refuses while a controller answers may be replaced.
        recovery_timeout_ms: how long writers and readers retry without progress, refused or not; 120,000 (Kafka's
            `delivery.timeout.ms`), to survive a restart of the whole cluster.
        close_timeout_ms: how long a writer's `aclose` waits for appends in flight.
    Writing
        append_batching: "turn" sends all events written in one iteration of the event loop as one append, like
            Pravega's Rust client; "blocks" sends each event as an append and batches them in blocks sized by 36.18,
            like the Java client.
        max_batch_bytes, max_batch_events: limits of one append; 1 MiB and 500 (36.19).
        max_ack_polls: while an event that its caller waits for is the only append in flight on its connection, the
            event loop runs up to this many iterations instead of sleeping; 64, which take about as long as a wake-up.
            Where acknowledgements take longer, it soon sleeps as usual. 0 turns this off.
        max_in_flight_bytes: above this many unacknowledged bytes, a segment writer applies back-pressure.
        max_event_bytes: the largest event that one append may carry; 8 MiB (43.7).
        enable_large_events: larger events go through a transient segment; False refuses them (43.7). The official Rust
            and Python clients always do so, the Java client only if configured.
        max_large_event_bytes: the largest event overall, for writers and for readers that assemble it; 1 GiB.
        large_event_chunk_bytes: the size of appends to a transient segment; 8 MiB (43.8).
    Transactions
        transaction_lease_ms: how long a transaction lives after its last ping; 90,000, as in the Rust client.
        transaction_commit_timeout_ms: how long to wait for a commit.
    Reading
        read_size_bytes: the size that a read suggests; 512 KiB, which stay in a core's cache until they are split into
            events. Stores return at most 2 MiB (36.28); more is faster where a round trip takes milliseconds.
        read_ahead_bytes: limit of a stream reader's read-ahead buffer.
    Statistics
        control_api: `http://host:port` of a segstore server that registers writer names; None for no registration.
        control_api_token: the token that this server requires (`--http-token-file`); sent unencrypted.
    Security
        username, password: basic authentication with the controller.
        bearer_token: a token for the controller, used instead; `connect(credentials=Bearer(…))` takes a token source.
        tls_ca_file: PEM file of trusted authorities; None uses the system's.
    """

    # Rejected input is never shown: it may be a password, or a token under a misspelt name.
    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, populate_by_name=True, hide_input_in_errors=True
    )

    max_connections_per_store: int = Field(default=10, ge=1)
    pool_policy: PoolPolicy = "fewest_flows"
    enable_connection_pooling: bool = True
    idle_connection_s: float = Field(default=60.0, ge=0, le=LONGEST_MS / 1000)
    keep_alive_first_s: float = Field(default=20.0, gt=0, le=LONGEST_MS / 1000)
    keep_alive_s: float = Field(default=10.0, gt=0, le=LONGEST_MS / 1000)
    write_buffer_bytes: int = Field(default=_MIB, ge=0, le=_MOST)
    max_frame_bytes: int = Field(default=MAX_FRAME_BYTES, ge=8, le=MAX_FRAME_BYTES)

    socket_connection_setup_timeout_ms: float = Field(
        default=10_000.0,
        gt=0,
        le=LONGEST_MS,
        validation_alias=AliasChoices("socket_connection_setup_timeout_ms", "connections_setup_timeout_ms"),
    )
    socket_connection_setup_timeout_max_ms: float = Field(default=30_000.0, gt=0, le=LONGEST_MS)
    reconnect_backoff: Backoff = Backoff(initial_ms=50, multiplier=2, max_ms=1000, jitter=0.2)
    least_recently_tried: bool = False

    request_timeout_ms: float = Field(default=30_000.0, gt=0, le=LONGEST_MS)
    read_timeout_ms: float = Field(default=30_000.0, gt=0, le=LONGEST_MS)
    retry: Backoff = Backoff(initial_ms=1, multiplier=10, max_ms=20_000, jitter=0, max_attempts=10)
    call_timeout_ms: float = Field(default=60_000.0, gt=0, le=LONGEST_MS)
    refused_timeout_ms: float = Field(default=10_000.0, gt=0, le=LONGEST_MS)
    recovery_timeout_ms: float = Field(default=120_000.0, gt=0, le=LONGEST_MS)
    close_timeout_ms: float = Field(default=30_000.0, gt=0, le=LONGEST_MS)

    append_batching: Literal["turn", "blocks"] = "turn"
    max_batch_bytes: int = Field(default=_MIB, gt=0, le=MAX_FRAME_BYTES - 1024)
    max_batch_events: int = Field(default=500, ge=1, le=MAX_INT32)
    max_ack_polls: int = Field(default=64, ge=0)
    max_in_flight_bytes: int = Field(default=16 * _MIB, gt=0, le=_MOST)
    max_event_bytes: int = Field(default=8 * _MIB, gt=0, le=MAX_FRAME_BYTES - 1024)
    enable_large_events: bool = True
    max_large_event_bytes: int = Field(default=1024 * _MIB, gt=0, le=MAX_INT32)
    large_event_chunk_bytes: int = Field(default=8 * _MIB, ge=8, le=MAX_FRAME_BYTES - 1024)

    transaction_lease_ms: int = Field(default=90_000, gt=0, le=LONGEST_MS)
    transaction_commit_timeout_ms: float = Field(default=120_000.0, gt=0, le=LONGEST_MS)

    read_size_bytes: int = Field(default=_MIB // 2, ge=8, le=MAX_INT32)
    read_ahead_bytes: int = Field(default=8 * _MIB, gt=0)

    control_api: str | None = None
    control_api_token: SecretStr | None = None

    username: str | None = None
    password: SecretStr | None = None
    bearer_token: SecretStr | None = None
    tls_ca_file: Path | None = None

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password must be given together")
        if self.username is not None and self.bearer_token is not None:
            raise ValueError("a bearer token excludes username and password")
        return self

    @field_validator("control_api")
    @classmethod
    def _check_address(cls, url: str | None) -> str | None:
        if url is not None:
            check_url(url)
        return url

    @field_validator("control_api_token")
    @classmethod
    def _check_word(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not all("!" <= character <= "~" for character in token.get_secret_value()):
            raise ValueError("a token must be one word of printable ASCII characters")
        return token

    @property
    def setup_timeout(self) -> Backoff:
        """The set-up timeout as a schedule; its start is capped at its maximum."""
        maximum = self.socket_connection_setup_timeout_max_ms
        return Backoff(initial_ms=min(self.socket_connection_setup_timeout_ms, maximum), max_ms=maximum)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Reads settings from the environment; arguments override it. Raises ValueError for a bad name or value."""
        source = os.environ if environment is None else environment
        prefix = ENVIRONMENT_PREFIX
        values = {name.removeprefix(prefix).lower(): text for name, text in source.items() if name.startswith(prefix)}
        return cls.model_validate(values | explicit)
