"""The controller client: scopes, streams, segments of a stream, their locations and delegation tokens.

Each method makes one call (listings: one per page). Protobuf types stay internal; segments are returned as
`SegmentRange`s. Requests and the reading of answers follow `ControllerImpl` (Pravega's client).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from segstore.client.connection import ConnectionPool, Endpoint, Locations, TokenCache
from segstore.client.controller.cuts import checked_cut
from segstore.client.controller.policies import (
    ScalingPolicy,
    StreamConfig,
    from_message,
    group_from_message,
    group_to_message,
    to_message,
)
from segstore.client.errors import (
    NoSuchReaderGroup,
    NoSuchStream,
    NoSuchTable,
    ProtocolViolation,
    RequestRejected,
    StreamSealed,
    TransactionOver,
)
from segstore.client.lifecycle import within
from segstore.client.retry import POLLS
from segstore.client.routing import SegmentRange
from segstore.wire.controller_api import messages as m
from segstore.wire.names import MAX_INT32, MAX_INT64, SegmentName, segment_name, split_segment_id
from segstore.wire.reader_groups import GroupConfig

if TYPE_CHECKING:
    from segstore.client.controller.channels import ControllerChannels, NodeResponse
    from segstore.client.telemetry import Telemetry

T = TypeVar("T")

Access = Literal["READ", "WRITE", "READ_WRITE"]

_TABLE_SUFFIX: Final = "_kvtable"
_MAX_KEY_BYTES: Final = 256
"""Maximum length of fixed-length table keys (`AttributeId.MAX_LENGTH` of Pravega's store)."""
_NO_TIME: Final = -(2**63)
_MASK: Final = 2**64 - 1


class TableConfig(BaseModel):
    """The immutable configuration of a key-value table.

    partitions: number of table segments that share its keys.
    primary_key_bytes, secondary_key_bytes: lengths of all keys, secondary 0 for no secondary keys; together at most
    256, because stores refuse longer keys and controllers then retry until the request times out.
    rollover_bytes: rollover size of the segments' storage; 0 for the server's default. Controllers always return 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    partitions: int = Field(default=1, ge=1, le=MAX_INT32)
    primary_key_bytes: int = Field(ge=1)
    secondary_key_bytes: int = Field(default=0, ge=0)
    rollover_bytes: int = Field(default=0, ge=0, le=MAX_INT64)

    @model_validator(mode="after")
    def _check_key_sizes(self) -> Self:
        length = self.primary_key_bytes + self.secondary_key_bytes
        if length > _MAX_KEY_BYTES:
            raise ValueError(f"table keys have at most {_MAX_KEY_BYTES} bytes in both parts together, not {length}")
        return self


class TransactionStatus(Enum):
    """The status of a transaction. UNKNOWN: no transaction has this id, or it ended too long ago."""

    UNKNOWN = "UNKNOWN"
    OPEN = "OPEN"
    COMMITTING = "COMMITTING"
    COMMITTED = "COMMITTED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"


class Successor(NamedTuple):
    """A successor segment and the ids of its predecessors."""

    segment: SegmentRange
    predecessors: tuple[int, ...]


def _range(scope: str, stream: str, segment: Any) -> SegmentRange:
    """Returns a segment of the stream that was asked about. Raises ValueError for an impossible id or range."""
    number = segment.segmentId.segmentId
    if not 0 <= segment.minKey < segment.maxKey <= 1:
        raise ValueError(f"segment {number} with keys from {segment.minKey} to {segment.maxKey}")
    return SegmentRange(number, name_of(scope, stream, number), segment.minKey, segment.maxKey)


def _ranges(scope: str, stream: str, segments: Iterable[Any]) -> list[SegmentRange]:
    return [_range(scope, stream, segment) for segment in segments]


def name_of(scope: str, stream: str, segment_id: int) -> str:
    """Returns the qualified name of a segment. Raises ValueError for an impossible id."""
    epoch, number = split_segment_id(segment_id)
    return segment_name(scope, stream, number, epoch)


class Controller:
    """The controller's operations.

    Methods raise the errors of `ControllerChannels.ask` and, depending on the status in the answer, NoSuchStream,
    NoSuchTable, StreamSealed, TransactionOver or RequestRejected, which name the node that sent it, and
    ProtocolViolation for values that no controller sends.
    """

    def __init__(self, channels: ControllerChannels) -> None:
        self._ask = channels.ask

    async def _read(self, method: str, request: Any, read: Callable[[Any], T]) -> T:
        """Makes a call and returns what `read` makes of the answer; its ValueError becomes a ProtocolViolation."""
        return _valid(await self._ask(method, request), f"answer to {method}", read)

    # --- scopes and streams -----------------------------------------------------------------------------------------

    async def create_scope(self, scope: str) -> bool:
        """Creates a scope; returns False if it exists."""
        answer = await self._ask("createScope", m.ScopeInfo(scope=scope))
        return _created(answer, "SCOPE_EXISTS", f"scope {scope}")

    async def delete_scope(self, scope: str) -> bool:
        """Deletes a scope; returns False if it does not exist."""
        answer = await self._ask("deleteScope", m.ScopeInfo(scope=scope))
        return _created(answer, "SCOPE_NOT_FOUND", f"scope {scope}")

    def list_scopes(self) -> AsyncIterator[str]:
        """Iterates over all scopes, page by page."""
        return self._pages("listScopes", m.ScopesRequest, None, lambda page: page.scopes)

    def list_streams(self, scope: str, *, tag: str | None = None) -> AsyncIterator[str]:
        """Iterates over all streams of a scope, or all with a tag, page by page."""
        method = "listStreamsInScope"
        request: Callable[..., Any] = m.StreamsInScopeRequest
        if tag is not None:
            method, request = "listStreamsInScopeForTag", partial(m.StreamsInScopeWithTagRequest, tag=tag)
        return self._pages(method, request, scope, lambda page: [stream.stream for stream in page.streams])

    async def _pages(
        self, method: str, request: Callable[..., Any], scope: str | None, names: Callable[[Any], Sequence[str]]
    ) -> AsyncIterator[str]:
        """Requests page after page, each with the token of the previous page, until a page has no names.

        scope: the scope of the listing, if any. Raises ProtocolViolation for a token that was requested before.
        """
        about = {} if scope is None else {"scope": m.ScopeInfo(scope=scope)}
        token, tokens = "", {""}
        while True:
            answer = await self._ask(method, request(continuationToken=m.ContinuationToken(token=token), **about))
            page = answer.message if scope is None else _succeeded(answer, f"scope {scope}")
            elements = names(page)
            for name in elements:
                yield name
            if not elements:
                return
            token = page.continuationToken.token
            if token in tokens:
                text = f"{answer.node} repeats token {token[:80]!r} of {method}"
                raise ProtocolViolation(text, endpoint=str(answer.node), method=method)
            tokens.add(token)

    async def create_stream(
        self, scope: str, stream: str, config: StreamConfig | None = None, *, segments: int | None = None
    ) -> bool:
        """Creates a stream; returns False if it exists, whatever its configuration.

        segments: instead of `config`, for a stream with a fixed number of segments and nothing else; 1 by default.
        Raises ValueError for fewer than 1, for a configuration that no stream can have, and if `config` is given, too.
        """
        if config is None:
            config = StreamConfig(scaling=ScalingPolicy.fixed(1 if segments is None else segments))
        elif segments is not None:
            raise ValueError("the number of segments is part of the configuration's scaling policy")
        answer = await self._ask("createStream", to_message(scope, stream, config))
        return _created(answer, "STREAM_EXISTS", f"stream {scope}/{stream}")

    async def update_stream(self, scope: str, stream: str, config: StreamConfig) -> None:
        """Replaces a stream's configuration. Raises NoSuchStream, StreamSealed, and ValueError as `create_stream`.

        To change a part: `dataclasses.replace(await controller.stream_config(…), tags=(…))`.
        """
        answer = await self._ask("updateStream", to_message(scope, stream, config))
        _succeeded(answer, f"stream {scope}/{stream}")

    async def stream_config(self, scope: str, stream: str) -> StreamConfig:
        """Returns a stream's configuration. Raises NoSuchStream, and ProtocolViolation for an unknown policy."""
        answer = await self._ask("getStreamConfiguration", _info(scope, stream))
        return _valid(answer, f"configuration of {scope}/{stream}", from_message)

    async def seal_stream(self, scope: str, stream: str) -> None:
        _succeeded(await self._ask("sealStream", _info(scope, stream)), f"stream {scope}/{stream}")

    async def delete_stream(self, scope: str, stream: str) -> None:
        _succeeded(await self._ask("deleteStream", _info(scope, stream)), f"stream {scope}/{stream}")

    async def truncate_stream(self, scope: str, stream: str, cut: Mapping[int, int]) -> None:
        """Deletes all data before a cut: segment id → offset. Raises CutError for a `StreamCut` of another stream."""
        request = m.StreamCut(streamInfo=_info(scope, stream), cut=checked_cut(scope, stream, cut))
        _succeeded(await self._ask("truncateStream", request), f"stream {scope}/{stream}")

    async def scale(
        self,
        scope: str,
        stream: str,
        sealed: Sequence[int],
        ranges: Sequence[tuple[float, float]],
        *,
        wait_ms: float = 0,
    ) -> list[SegmentRange]:
        """Seals segments and replaces them by new segments over the same key range; returns the new segments.

        wait_ms: how long to wait for completion. With 0 the scale may still be in progress on return; the controller
        refuses another one until it has finished. Raises RequestRejected, also if fewer segments would be left than the
        stream was created with (PRECONDITION_FAILED), and RequestTimedOut if the scale started but takes longer.
        """
        request = m.ScaleRequest(
            streamInfo=_info(scope, stream),
            sealedSegments=sealed,
            newKeyRanges=[m.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges],
            scaleTimestamp=int(time.time() * 1000),
        )
        answer = await self._ask("scale", request)
        started = _succeeded(answer, f"stream {scope}/{stream}", "STARTED")
        segments = _valid(answer, "answer to scale", lambda it: _ranges(scope, stream, it.segments))
        if wait_ms:
            await self._scaled(scope, stream, started.epoch, wait_ms)
        return segments

    async def _scaled(self, scope: str, stream: str, epoch: int, wait_ms: float) -> None:
        """Waits until the scale that started from an epoch has finished."""
        name, polls, random = f"{scope}/{stream}", 0, Random()
        request = m.ScaleStatusRequest(streamInfo=_info(scope, stream), epoch=epoch)
        late = f"the scale of {name} from epoch {epoch} was started but did not finish"
        async with within(wait_ms, late, stream=name):
            while (status := _status((answer := await self._ask("checkScale", request)).message)) == "IN_PROGRESS":
                polls += 1
                await asyncio.sleep(POLLS.delay_ms(polls, random) / 1000)
        if status != "SUCCESS":
            raise RequestRejected(
                f"the scale of {name} from epoch {epoch} was started, but then the controller reported {status}",
                endpoint=str(answer.node),
                stream=name,
                status=status,
            )

    # --- segments ---------------------------------------------------------------------------------------------------

    async def current_segments(self, scope: str, stream: str) -> list[SegmentRange]:
        """Returns the open segments; [] for a sealed stream."""
        return await self._ranges("getCurrentSegments", _info(scope, stream), scope, stream)

    async def _ranges(self, method: str, request: Any, scope: str, stream: str) -> list[SegmentRange]:
        return await self._read(method, request, lambda it: _ranges(scope, stream, it.segmentRanges))

    async def head(self, scope: str, stream: str) -> dict[int, int]:
        """Returns the stream's head as a cut: segment id → offset."""
        request = m.GetSegmentsRequest(streamInfo=_info(scope, stream), timestamp=0)
        return await self._read(
            "getSegments",
            request,
            lambda it: dict(_position(segment.segmentId, segment.offset) for segment in it.segments),
        )

    async def successors(self, scope: str, stream: str, segment_id: int) -> list[Successor]:
        """Returns a segment's successors, [] if none yet. Raises ProtocolViolation if an epoch is not later."""
        request = m.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id)
        method = "getSegmentsImmediatelyFollowing"
        answer = await self._ask(method, request)
        successors = _valid(
            answer,
            f"answer to {method}",
            lambda it: [
                Successor(_range(scope, stream, segment.segment), tuple(map(_checked_id, segment.value)))
                for segment in it.segments
            ],
        )
        epoch, _ = split_segment_id(segment_id)
        for successor in successors:
            if split_segment_id(successor.segment.segment_id)[0] <= epoch:  # following it could loop forever
                raise ProtocolViolation(
                    f"{answer.node} says that {successor.segment.name} follows "
                    f"{name_of(scope, stream, segment_id)}, which is not of an earlier epoch",
                    endpoint=str(answer.node),
                    segment=successor.segment.name,
                    stream=f"{scope}/{stream}",
                )
        return successors

    async def epoch_segments(self, scope: str, stream: str, epoch: int) -> list[SegmentRange]:
        """Returns the segments of an epoch."""
        request = m.GetEpochSegmentsRequest(streamInfo=_info(scope, stream), epoch=epoch)
        return await self._ranges("getEpochSegments", request, scope, stream)

    async def segments_between(
        self, scope: str, stream: str, start: Mapping[int, int], end: Mapping[int, int]
    ) -> list[int]:
        """Returns the ids of the segments that have data between two cuts; one may be empty: the head or the tail.

        Raises RequestRejected if a cut does not belong to the stream or the end lies before the start.
        """
        request = m.StreamCutRange(streamInfo=_info(scope, stream), to=end, **{"from": start})
        return await self._read(
            "getSegmentsBetween", request, lambda it: [_position(segment)[0] for segment in it.segments]
        )

    # --- transactions -----------------------------------------------------------------------------------------------

    async def create_transaction(self, scope: str, stream: str, lease_ms: int) -> tuple[UUID, list[SegmentRange]]:
        """Creates a transaction; returns its id and the stream segments that its own segments belong to."""
        return await self._read(
            "createTransaction",
            m.CreateTxnRequest(streamInfo=_info(scope, stream), lease=lease_ms),
            lambda it: (_identifier(it.txnId), _ranges(scope, stream, it.activeSegments)),
        )

    async def ping_transaction(self, scope: str, stream: str, transaction: UUID, lease_ms: int) -> str:
        """Extends a lease; returns the status that the controller reports."""
        request = m.PingTxnRequest(streamInfo=_info(scope, stream), txnId=_transaction(transaction), lease=lease_ms)
        return _status((await self._ask("pingTransaction", request)).message)

    async def commit_transaction(
        self, scope: str, stream: str, transaction: UUID, writer: str = "", timestamp: int | None = None
    ) -> None:
        """Requests a commit; the events are readable once its status is COMMITTED. Raises TransactionOver."""
        request = m.TxnRequest(
            streamInfo=_info(scope, stream),
            txnId=_transaction(transaction),
            writerId=writer,
            timestamp=_NO_TIME if timestamp is None else timestamp,
        )
        _ended(await self._ask("commitTransaction", request), scope, stream, transaction, "committed")

    async def abort_transaction(self, scope: str, stream: str, transaction: UUID) -> None:
        """Aborts a transaction. Raises TransactionOver."""
        request = m.TxnRequest(streamInfo=_info(scope, stream), txnId=_transaction(transaction))
        _ended(await self._ask("abortTransaction", request), scope, stream, transaction, "aborted")

    async def transaction_status(self, scope: str, stream: str, transaction: UUID) -> TransactionStatus:
        request = m.TxnRequest(streamInfo=_info(scope, stream), txnId=_transaction(transaction))
        return await self._read(
            "checkTransactionState", request, lambda it: TransactionStatus(m.TxnState.State.Name(it.state))
        )

    async def completed_transactions(self, scope: str, stream: str) -> dict[UUID, TransactionStatus]:
        """Returns the latest transactions that ended; none for an unknown stream.

        Pravega keeps them by time, for all streams together, so some may be missing.
        """
        request = m.ListCompletedTxnRequest(streamInfo=_info(scope, stream))
        return await self._read(
            "listCompletedTransactions",
            request,
            lambda it: {
                _identifier(entry.txnId): TransactionStatus(m.TxnResponse.Status.Name(entry.status))
                for entry in it.response
            },
        )

    # --- times of writers -------------------------------------------------------------------------------------------

    async def note_time(
        self, scope: str, stream: str, writer: str, timestamp: int, position: Mapping[int, int]
    ) -> None:
        """Notes that a writer had reached a position, segment id → offset, at a time, for watermarks.

        Raises RequestRejected, whose status is INVALID_TIME for a time before the writer's last time, and
        INVALID_POSITION for a position before it.
        """
        cut = m.StreamCut(streamInfo=_info(scope, stream), cut=position)
        answer = await self._ask(
            "noteTimestampFromWriter", m.TimestampFromWriter(writer=writer, position=cut, timestamp=timestamp)
        )
        _succeeded(answer, f"the time {timestamp} of writer {writer} of {scope}/{stream}", field="result")

    async def remove_writer(self, scope: str, stream: str, writer: str) -> bool:
        """Removes a writer from the computation of watermarks; returns False if it has reported no time."""
        answer = await self._ask("removeWriter", m.RemoveWriterRequest(writer=writer, stream=_info(scope, stream)))
        return bool(answer.message.result == m.RemoveWriterResponse.SUCCESS)

    # --- reader groups ----------------------------------------------------------------------------------------------

    async def create_reader_group(self, scope: str, group: str, config: GroupConfig) -> GroupConfig:
        """Creates a reader group with its stream; returns its configuration, or an existing group's.

        The group's state is written by a client, see `segstore.client.groups`. Raises NoSuchStream for its scope.
        """
        answer = await self._ask("createReaderGroup", group_to_message(scope, group, config))
        return _group_config(answer, scope, group)

    async def reader_group_config(self, scope: str, group: str) -> GroupConfig:
        """Returns a reader group's configuration. Raises NoSuchReaderGroup."""
        answer = await self._ask("getReaderGroupConfig", m.ReaderGroupInfo(scope=scope, readerGroup=group))
        return _group_config(answer, scope, group)

    async def update_reader_group(self, scope: str, group: str, config: GroupConfig) -> int:
        """Replaces a configuration, whose id and generation must be current; returns the new generation.

        Raises NoSuchReaderGroup, and RequestRejected with the status INVALID_CONFIG for another id or generation.
        """
        answer = await self._ask("updateReaderGroup", group_to_message(scope, group, config))
        return int(_succeeded(answer, f"reader group {scope}/{group}").generation)

    async def delete_reader_group(self, scope: str, group: str, identifier: UUID) -> None:
        """Deletes a reader group with its stream. identifier: from its configuration. Raises NoSuchReaderGroup."""
        request = m.ReaderGroupInfo(scope=scope, readerGroup=group, readerGroupId=str(identifier))
        _succeeded(await self._ask("deleteReaderGroup", request), f"reader group {scope}/{group}")

    async def update_subscriber_cut(
        self, scope: str, stream: str, group: str, config: GroupConfig, cut: Mapping[int, int]
    ) -> None:
        """Reports that a group needs no data of a stream before a cut. group: as "scope/group".

        Raises RequestRejected, whose status is STREAM_CUT_NOT_VALID, SUBSCRIBER_NOT_FOUND or GENERATION_MISMATCH.
        """
        answer = await self._ask(
            "updateSubscriberStreamCut",
            m.SubscriberStreamCut(
                subscriber=group,
                readerGroupId=str(config.id),
                generation=config.generation,
                streamCut=m.StreamCut(streamInfo=_info(scope, stream), cut=cut),
            ),
        )
        _succeeded(answer, f"stream {scope}/{stream}")

    # --- key-value tables -------------------------------------------------------------------------------------------

    async def create_table(self, scope: str, table: str, config: TableConfig) -> bool:
        """Creates a table; returns False if one exists, whatever its configuration."""
        request = m.KeyValueTableConfig(
            scope=scope,
            kvtName=table,
            partitionCount=config.partitions,
            primaryKeyLength=config.primary_key_bytes,
            secondaryKeyLength=config.secondary_key_bytes,
            rolloverSizeBytes=config.rollover_bytes,
        )
        return _created(await self._ask("createKeyValueTable", request), "TABLE_EXISTS", f"table {scope}/{table}")

    async def delete_table(self, scope: str, table: str) -> bool:
        """Deletes a table and its contents; returns False if it does not exist."""
        answer = await self._ask("deleteKeyValueTable", _table(scope, table))
        return _created(answer, "TABLE_NOT_FOUND", f"table {scope}/{table}")

    def list_tables(self, scope: str) -> AsyncIterator[str]:
        """Iterates over all key-value tables of a scope, page by page."""
        method, request = "listKeyValueTablesInScope", m.KVTablesInScopeRequest
        return self._pages(method, request, scope, lambda page: [table.kvtName for table in page.kvtables])

    async def table_config(self, scope: str, table: str) -> TableConfig:
        """Returns a table's configuration. Raises NoSuchTable."""
        answer = await self._ask("getKeyValueTableConfiguration", _table(scope, table))
        config = _succeeded(answer, f"table {scope}/{table}").config
        return _valid(
            answer,
            f"configuration of table {scope}/{table}",
            lambda _: TableConfig(
                partitions=config.partitionCount,
                primary_key_bytes=config.primaryKeyLength,
                secondary_key_bytes=config.secondaryKeyLength,
                rollover_bytes=config.rolloverSizeBytes,
            ),
        )

    async def table_segments(self, scope: str, table: str) -> list[SegmentRange]:
        """Returns the table's partitions. Raises NoSuchTable."""
        try:
            stream = table + _TABLE_SUFFIX
            return await self._ranges("getCurrentSegmentsKeyValueTable", _table(scope, table), scope, stream)
        except NoSuchStream as error:
            raise NoSuchTable(
                f"there is no table {scope}/{table}", endpoint=error.endpoint, stream=f"{scope}/{table}"
            ) from error

    # --- locations and tokens ---------------------------------------------------------------------------------------

    async def endpoint_of(self, scope: str, stream: str, segment_id: int) -> Endpoint:
        """Returns the endpoint of the store that owns a segment."""
        request = m.SegmentId(streamInfo=_info(scope, stream), segmentId=segment_id)
        return await self._read("getURI", request, lambda it: Endpoint.checked(it.endpoint, it.port))

    async def delegation_token(self, scope: str, stream: str, access: Access) -> str:
        """Returns a delegation token; "" if the controller issues no tokens."""
        request = m.StreamInfo(scope=scope, stream=stream, accessOperation=m.StreamInfo.AccessOperation.Value(access))
        return str((await self._ask("getDelegationToken", request)).message.delegationToken)


def _info(scope: str, stream: str) -> m.StreamInfo:
    return m.StreamInfo(scope=scope, stream=stream)


def _table(scope: str, table: str) -> m.KeyValueTableInfo:
    return m.KeyValueTableInfo(scope=scope, kvtName=table)


def _transaction(identifier: UUID) -> m.TxnId:
    high, low = (bits - 2**64 if bits >= 2**63 else bits for bits in (identifier.int >> 64, identifier.int & _MASK))
    return m.TxnId(highBits=high, lowBits=low)


def _position(segment: Any, offset: int = 0) -> tuple[int, int]:
    """Returns a segment's id and an offset in it. Raises ValueError if no segment can have them."""
    if offset < 0:
        raise ValueError(f"offset {offset} of segment {segment.segmentId}")
    return _checked_id(segment.segmentId), offset


def _checked_id(segment_id: int) -> int:
    if min(split_segment_id(segment_id)) < 0:
        raise ValueError(f"segment {segment_id}")
    return segment_id


def _identifier(message: Any) -> UUID:
    return UUID(int=(message.highBits & _MASK) << 64 | (message.lowBits & _MASK))


def _ended(answer: NodeResponse, scope: str, stream: str, transaction: UUID, how: str) -> None:
    status = _status(answer.message)
    facts: dict[str, Any] = {"endpoint": str(answer.node), "stream": f"{scope}/{stream}", "status": status}
    if status == "STREAM_NOT_FOUND":
        raise NoSuchStream(f"stream {scope}/{stream}: {status}", **facts)
    if status != "SUCCESS":
        raise TransactionOver(
            f"transaction {transaction} of {scope}/{stream} cannot be {how}: the controller reports {status}",
            transaction=transaction,
            **facts,
        )


def _status(message: Any, field: str = "status") -> str:
    """Returns the name of the status in an answer; its number if this version has no name for it."""
    number = getattr(message, field)
    known = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    return str(number) if known is None else str(known.name)


def _valid(answer: NodeResponse, what: str, read: Callable[[Any], T]) -> T:
    """Returns what `read` makes of an answer; its ValueError becomes a ProtocolViolation."""
    try:
        return read(answer.message)
    except ValueError as problem:
        raise ProtocolViolation(
            f"{answer.node} returned an invalid {what}: {problem}", endpoint=str(answer.node)
        ) from problem


def _succeeded(answer: NodeResponse, what: str, success: str = "SUCCESS", field: str = "status") -> Any:
    """Returns the message if its status is success, else raises. what: "scope a", "stream a/b" or "table a/b"."""
    status = _status(answer.message, field)
    if status == success:
        return answer.message
    kind, _, name = what.rpartition(" ")
    facts: dict[str, Any] = {"endpoint": str(answer.node), "status": status}
    if kind != "scope":
        facts["stream"] = name
    text = f"{what}: the controller reports {status}"
    if status == "TABLE_NOT_FOUND":
        raise NoSuchTable(text, **facts)
    if status == "RG_NOT_FOUND":
        raise NoSuchReaderGroup(f"reader group {name} does not exist", **facts)
    if status in ("STREAM_NOT_FOUND", "SCOPE_NOT_FOUND"):
        raise NoSuchStream(text, **facts)
    if status == "STREAM_SEALED":
        raise StreamSealed(text, **facts)
    raise RequestRejected(text, **facts)


def _group_config(answer: NodeResponse, scope: str, group: str) -> GroupConfig:
    config = _succeeded(answer, f"reader group {scope}/{group}").config
    return _valid(answer, f"configuration of reader group {scope}/{group}", lambda _: group_from_message(config))


def _created(answer: NodeResponse, exists: str, what: str) -> bool:
    if _status(answer.message) == exists:
        return False
    _succeeded(answer, what)
    return True


class Cluster(NamedTuple):
    """A cluster, as a client reaches it: connections to its stores, its controller, and the locations of its segments,
    with tokens for one kind of access. telemetry: observes operations; None for none."""

    pool: ConnectionPool
    controller: Controller
    locations: Locations
    telemetry: Telemetry | None = None


class ControllerLocations:
    """Segment locations and tokens from the controller. Locations are cached until they prove wrong.

    Tokens are cached per stream, grant one kind of access, and are renewed before they expire.
    """

    def __init__(self, controller: Controller, access: Access, *, now_s: Callable[[], float] = time.time) -> None:
        self._controller = controller
        self._access: Access = access
        self._now_s = now_s
        # Keyed by parent: transaction segments live where their parents do, and would fill the cache one by one.
        self._endpoints: dict[tuple[str, str, int], Endpoint] = {}
        self._tokens: dict[tuple[str, str], TokenCache] = {}

    async def endpoint_of(self, segment: str) -> Endpoint:
        parts = parts_of(segment)
        known = self._endpoints.get(parts)
        if known is None:
            known = self._endpoints[parts] = await self._controller.endpoint_of(*parts)
        return known

    def forget(self, segment: str, endpoint: Endpoint) -> None:
        parts = parts_of(segment)
        if self._endpoints.get(parts) == endpoint:
            del self._endpoints[parts]

    async def token_for(self, segment: str) -> str:
        scope, stream, _ = parts_of(segment)
        tokens = self._tokens.get((scope, stream))
        if tokens is None:

            async def fetch() -> str:
                return await self._controller.delegation_token(scope, stream, self._access)

            tokens = self._tokens[scope, stream] = TokenCache(fetch, now_s=self._now_s)
        return await tokens.get()

    def expired(self, segment: str, token: str) -> None:
        scope, stream, _ = parts_of(segment)
        if (tokens := self._tokens.get((scope, stream))) is not None:
            tokens.expired(token)


def parts_of(segment: str) -> tuple[str, str, int]:
    """Returns scope, stream and id of a segment's qualified name. Raises RequestRejected for other names."""
    parsed = SegmentName.parse(segment)
    if parsed.stream is None or parsed.segment_id is None:
        raise RequestRejected(f"{segment} is not a stream segment", segment=segment)
    return parsed.scope or "", parsed.stream, parsed.segment_id
