"""Client settings, validated once at construction.

Frozen, keyword-only, units in the names. Each can be read from the environment: `ClientSettings.from_environment()`
takes `SEGSTORE_CLIENT_` and the field's name in capitals, so SEGSTORE_CLIENT_MAX_CONNECTIONS_PER_STORE=4; the fields of
a `Backoff` as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    field_validator,
    model_validator,
)

from segstore.client.control_api import check_url
from segstore.client.retry import Backoff
from segstore.wire import MAX_FRAME_BYTES

ENVIRONMENT_PREFIX = "SEGSTORE_CLIENT_"

PoolPolicy = Literal["fewest_flows", "least_busy"]

_MIB = 1024 * 1024


class ClientSettings(BaseModel):
    """How a client behaves. Seed ids stand for where a default comes from.

    Connections
        max_connections_per_store: of the pool, to one store; 10 (36.5).
        pool_policy: which of them a new user gets: the one with the fewest flows (36.6), or with the fewest bytes in
            flight (36.10).
        enable_connection_pooling: False gives each writer and reader a connection of its own, without flows (36.9).
        idle_connection_s: a connection that carried no flow for so long is closed by the next `prune`.
        keep_alive_first_s, keep_alive_s: a KeepAlive goes out first after 20 s and then each 10 s (36.13).
        write_buffer_bytes: what may wait in the socket's buffer before writers of this connection are held back.
        max_frame_bytes: longest frame taken, header included.
    Setting up (601; TCP, TLS and Hello, or gRPC until it is ready)
        socket_connection_setup_timeout_ms: 10,000; also known as connections_setup_timeout_ms (601.1).
        socket_connection_setup_timeout_max_ms: 30,000; the timeout doubles with each consecutive failure, ±20 %, and
            never exceeds this (601.2).
        reconnect_backoff: per node 50 ms to 1 s, doubling, ±20 % (601.6).
        least_recently_tried: among disconnected controllers take the one tried longest ago, as Kafka shipped, rather
            than the one with the fewest failed attempts (601.5).
    Requests
        request_timeout_ms: for one request and its reply; 30,000 (Kafka's `request.timeout.ms`).
        read_timeout_ms: for a read, which waits at the tail: above the 20 s after which a segstore store answers. Then
            the store is asked where the segment ends: the read goes on waiting if there is nothing to read, and is
            asked anew, with another request id, if there is. The reference never answers by time.
        retry: of writers and requests: 1 ms ×10, at most 20 s, 10 attempts (36.26).
        call_timeout_ms: for a request with all its attempts; 60,000 (Kafka's `default.api.timeout.ms`), and never less
            than one attempt may take.
        refused_timeout_ms: the same where nobody is there to ask: all controllers refuse connections, or the one store
            where there is no controller; 10,000. A store that refuses while a controller answers may be replaced.
        recovery_timeout_ms: writers and readers try so long to go on, refused or not; 120,000 (Kafka's
            `delivery.timeout.ms`), so that they outlive a restart of the whole cluster.
        close_timeout_ms: `aclose` of a writer gives what is in flight so long.
    Writing
        append_batching: "turn" sends what was written in one turn of the event loop as one append (as Pravega's Rust
            client gathers events); "blocks" sends each event as an append and lets the block sizes of 36.18 gather
            them, as the Java client does.
        max_batch_bytes, max_batch_events: of one append; 1 MiB and 500 are the limits of 36.19.
        max_in_flight_bytes: a segment writer holds back above so many bytes that are not acknowledged.
        max_event_bytes: the largest event that one append may carry; 8 MiB (43.7).
        enable_large_events: larger ones go through a transient segment; False refuses them (43.7). The official Rust
            and Python clients always do so, the Java client has to be told.
        max_large_event_bytes: the largest event at all, for writers and for readers that assemble it; 1 GiB.
        large_event_chunk_bytes: of what a transient segment is written in; 8 MiB (43.8).
    Transactions
        transaction_lease_ms: a transaction lives so long after its last ping; 90,000, as the Rust client asks.
        transaction_commit_timeout_ms: how long a commit is waited for.
    Reading
        read_size_bytes: what a read suggests; stores answer at most 2 MiB (36.28).
        read_ahead_bytes: what a stream's reader keeps for its user.
    Statistics
        control_api: `http://host:port` of a segstore server, where names of writers are registered; None for nowhere.
        control_api_token: the token that this server requires (`--http-token-file`); sent unencrypted.
    Security
        username, password: basic authentication with the controller.
        bearer_token: a token for the controller, instead of those; `connect(credentials=Bearer(…))` takes a source of
            tokens.
        tls_ca_file: PEM of the authorities to trust; None is the system's.
    """

    # What is refused is not shown: it may be a password, or a token under a name that is none.
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, hide_input_in_errors=True)

    max_connections_per_store: int = Field(default=10, ge=1)
    pool_policy: PoolPolicy = "fewest_flows"
    enable_connection_pooling: bool = True
    idle_connection_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    keep_alive_first_s: float = Field(default=20.0, gt=0, allow_inf_nan=False)
    keep_alive_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    write_buffer_bytes: int = Field(default=_MIB, ge=0)
    max_frame_bytes: int = Field(default=MAX_FRAME_BYTES, ge=8, le=MAX_FRAME_BYTES)

    socket_connection_setup_timeout_ms: float = Field(
        default=10_000.0,
        gt=0,
        validation_alias=AliasChoices("socket_connection_setup_timeout_ms", "connections_setup_timeout_ms"),
    )
    socket_connection_setup_timeout_max_ms: float = Field(default=30_000.0, gt=0)
    reconnect_backoff: Backoff = Backoff(initial_ms=50, multiplier=2, max_ms=1000, jitter=0.2)
    least_recently_tried: bool = False

    request_timeout_ms: float = Field(default=30_000.0, gt=0, allow_inf_nan=False)
    read_timeout_ms: float = Field(default=30_000.0, gt=0, allow_inf_nan=False)
    retry: Backoff = Backoff(initial_ms=1, multiplier=10, max_ms=20_000, jitter=0, max_attempts=10)
    call_timeout_ms: float = Field(default=60_000.0, gt=0, allow_inf_nan=False)
    refused_timeout_ms: float = Field(default=10_000.0, gt=0, allow_inf_nan=False)
    recovery_timeout_ms: float = Field(default=120_000.0, gt=0, allow_inf_nan=False)
    close_timeout_ms: float = Field(default=30_000.0, gt=0, allow_inf_nan=False)

    append_batching: Literal["turn", "blocks"] = "turn"
    max_batch_bytes: int = Field(default=_MIB, gt=0, le=MAX_FRAME_BYTES - 1024)
    max_batch_events: int = Field(default=500, ge=1)
    max_in_flight_bytes: int = Field(default=16 * _MIB, gt=0)
    max_event_bytes: int = Field(default=8 * _MIB, gt=0, le=MAX_FRAME_BYTES - 1024)
    enable_large_events: bool = True
    max_large_event_bytes: int = Field(default=1024 * _MIB, gt=0, le=(1 << 31) - 1)
    large_event_chunk_bytes: int = Field(default=8 * _MIB, ge=8, le=MAX_FRAME_BYTES - 1024)

    transaction_lease_ms: int = Field(default=90_000, gt=0)
    transaction_commit_timeout_ms: float = Field(default=120_000.0, gt=0, allow_inf_nan=False)

    read_size_bytes: int = Field(default=2 * _MIB, ge=8)
    read_ahead_bytes: int = Field(default=8 * _MIB, gt=0)

    control_api: str | None = None
    control_api_token: SecretStr | None = None

    username: str | None = None
    password: SecretStr | None = None
    bearer_token: SecretStr | None = None
    tls_ca_file: Path | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")
        if self.username is not None and self.bearer_token is not None:
            raise ValueError("a bearer token goes without username and password")
        return self

    @field_validator("control_api")
    @classmethod
    def _is_an_address(cls, given: str | None) -> str | None:
        if given is not None:
            check_url(given)
        return given

    @field_validator("control_api_token")
    @classmethod
    def _is_one_word(cls, given: SecretStr | None) -> SecretStr | None:
        if given is not None and not all("!" <= each <= "~" for each in given.get_secret_value()):
            raise ValueError("a token must be one word of printable ASCII characters")
        return given

    @property
    def setup_timeout(self) -> Backoff:
        """The set-up timeout as a schedule; it cannot start above its maximum."""
        maximum = self.socket_connection_setup_timeout_max_ms
        return Backoff(initial_ms=min(self.socket_connection_setup_timeout_ms, maximum), max_ms=maximum)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **explicit: Any) -> Self:
        """Settings from the environment; arguments go before it. Raises ValueError for a name or value that is none."""
        source = os.environ if environment is None else environment
        given: dict[str, Any] = {}
        for variable, text in source.items():
            if not variable.startswith(ENVIRONMENT_PREFIX):
                continue
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            field = cls.model_fields.get(name)
            if field is not None and field.annotation is Backoff:
                given[name] = TypeAdapter(Backoff).validate_json(text)
            else:
                given[name] = text
        return cls.model_validate(given | explicit)
