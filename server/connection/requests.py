"""What a segment store does on a command, and which reply it gives to an error: two tables.

Here are the handlers that apply a command to the store and reply at once, with `@_request`: each has the segment that a
refusal names, and the access that a token must grant. ReadSegment, which may wait, is in
`segstore.server.connection.service`; the handshake and what sets up writers and transient segments of a connection is
in `segstore.server.connection.session`, both with `@handles`. Appends are no commands here: `Session.receive_all` takes
them in runs.

Source: `PravegaRequestProcessor`, `AdminRequestProcessorImpl`; for errors, `handleException` of
`PravegaRequestProcessor` and `AppendProcessor` (seed 36.25).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from segstore.server.auth import Permission, TokenError, TokenExpired, TokenRefused
from segstore.server.config import LimitSettings
from segstore.server.connection.states import SessionEnding
from segstore.server.store import (
    IS_INDEX,
    AttributeUpdate,
    BadAttribute,
    IllegalArgument,
    SegmentStore,
    StoreError,
    Unsupported,
    errors,
)
from segstore.wire import AuthTokenErrorCode, Command, ErrorMessageCode
from segstore.wire import commands as w
from segstore.wire.names import is_index

if TYPE_CHECKING:
    from segstore.server.connection.session import Session

_PAGE_ITEMS: Final = 1024
"""Maximum number of items on a page of a table. A peer that asks for more continues with the page's token."""

_MAX_TRACE_CHARACTERS: Final = 20_000
"""A stack trace fits a reply."""

C = TypeVar("C", bound=Command)
Perform = Callable[[SegmentStore, C, int], Command]


HANDLERS: Final[dict[type[Command], Callable[[Session, Any], None]]] = {}
"""Handlers of all commands that a store takes, appends apart."""
H = TypeVar("H", bound=Callable[[Any, Any], None])


def handles(kind: type[Command]) -> Callable[[H], H]:
    """Registers a handler: (session, command) → None."""

    def register(handler: H) -> H:
        HANDLERS[kind] = handler
        return handler

    return register


def _request(
    kind: type[C],
    *,
    segment: str = "segment",
    access: Callable[[C], Iterable[tuple[str, Permission]]] | None = None,
    offset: str = "",
    admin_only: bool = False,
    afterwards: Callable[[C, Command], StoreError | None] | None = None,
    named: Callable[[C], Sized] | None = None,
) -> Callable[[Perform[C]], Perform[C]]:
    """Registers a handler that applies a command to the store: (store, command, now in ms) → reply; raises StoreError.

    Args:
        segment: the command's attribute that names the segment for refusals; "" if there is none.
        access: the (segment, level) pairs that the token must grant, in the order in which they are checked; by default
            READ for the segment.
        offset: the command's attribute with the offset for refusals; "" if there is none.
        admin_only: whether it is served on the admin port only.
        afterwards: (command, reply) → an error that occurs after the reply, sent as a second reply. None if no
            error can occur.
        named: the keys or, for `MergeSegmentsBatch`, segments that a request names, whose number is limited. None for
            requests that name a single segment or key.
    """

    operation = kind.__name__[0].lower() + kind.__name__[1:]  # the reference's name, in OperationUnsupported

    def register(perform: Perform[C]) -> Perform[C]:
        @handles(kind)
        def handle(session: Session, command: Any) -> None:
            service = session.service
            if admin_only and not session.admin:
                service.not_served(session, command)
                return
            service.counters.requests += 1
            name = getattr(command, segment) if segment else ""
            at = getattr(command, offset) if offset else -1
            about = command.request_id, name, operation, at
            try:
                if named is not None:
                    _check_count(command, name, len(named(command)), service.settings.limits)
                for resource, level in ((name, Permission.READ),) if access is None else access(command):
                    service.authorize(resource, command.delegation_token, level)
                reply = perform(service.store, command, service.now_ms())
            except (StoreError, TokenError) as error:
                refuse(session, error, *about)
                return
            session.reply(reply)
            failed = None if afterwards is None else afterwards(command, reply)
            if failed is not None:
                refuse(session, failed, *about)

        return perform

    return register


def _check_count(command: Command, segment: str, count: int, limits: LimitSettings) -> None:
    is_batch = isinstance(command, w.MergeSegmentsBatch)
    most, items = (limits.request_segments, "segments") if is_batch else (limits.request_keys, "keys")
    if count > most:
        why = f"A request names {count} {items}, but at most {most} are allowed."
        raise IllegalArgument(why, segment=segment)


# --- segments ---------------------------------------------------------------------------------------------------


@_request(w.CreateSegment)
def _create_segment(store: SegmentStore, c: w.CreateSegment, now_ms: int) -> Command:
    store.create_segment(
        c.segment,
        scale_type=c.scale_type,
        target_rate=c.target_rate,
        rollover_size=c.rollover_size_bytes,
        now_ms=now_ms,
    )
    return w.SegmentCreated(c.request_id, c.segment)


@_request(w.GetStreamSegmentInfo, segment="segment_name")
def _segment_info(store: SegmentStore, c: w.GetStreamSegmentInfo, now_ms: int) -> Command:
    info = store.segment_info(c.segment_name, now_ms=now_ms)
    return w.StreamSegmentInfo(
        c.request_id, c.segment_name, True, info.sealed, False, info.last_modified_ms, info.length, info.start_offset
    )


@_request(w.SealSegment)
def _seal_segment(store: SegmentStore, c: w.SealSegment, now_ms: int) -> Command:
    store.container_for(c.segment).seal_segment(c.segment, now_ms=now_ms)
    return w.SegmentSealed(c.request_id, c.segment)


@_request(w.DeleteSegment)
def _delete_segment(store: SegmentStore, c: w.DeleteSegment, _: int) -> Command:
    store.delete_segment(c.segment)
    return w.SegmentDeleted(c.request_id, c.segment)


@_request(w.TruncateSegment, offset="truncation_offset")
def _truncate_segment(store: SegmentStore, c: w.TruncateSegment, now_ms: int) -> Command:
    store.truncate_segment(c.segment, c.truncation_offset, now_ms=now_ms)
    return w.SegmentTruncated(c.request_id, c.segment)


@_request(w.UpdateSegmentPolicy)
def _update_policy(store: SegmentStore, c: w.UpdateSegmentPolicy, now_ms: int) -> Command:
    store.container_for(c.segment).update_policy(
        c.segment, scale_type=c.scale_type, target_rate=c.target_rate, now_ms=now_ms
    )
    return w.SegmentPolicyUpdated(c.request_id, c.segment)


@_request(w.LocateOffset)
def _locate_offset(store: SegmentStore, c: w.LocateOffset, now_ms: int) -> Command:
    return w.OffsetLocated(c.request_id, c.segment, store.locate_offset(c.segment, c.target_offset, now_ms=now_ms))


# --- attributes -------------------------------------------------------------------------------------------------


@_request(w.GetSegmentAttribute, segment="segment_name")
def _get_attribute(store: SegmentStore, c: w.GetSegmentAttribute, _: int) -> Command:
    return w.SegmentAttribute(
        c.request_id, store.container_for(c.segment_name).get_attribute(c.segment_name, c.attribute_id)
    )


@_request(w.UpdateSegmentAttribute, segment="segment_name")
def _update_attribute(store: SegmentStore, c: w.UpdateSegmentAttribute, now_ms: int) -> Command:
    try:
        store.container_for(c.segment_name).update_attribute(
            c.segment_name, c.attribute_id, c.new_value, c.expected_value, now_ms=now_ms
        )
    except BadAttribute:
        return w.SegmentAttributeUpdated(c.request_id, False)
    return w.SegmentAttributeUpdated(c.request_id, True)


# --- merges -----------------------------------------------------------------------------------------------------


def _no_index_of_an_index(c: w.MergeSegments, reply: Command) -> StoreError | None:
    merged = isinstance(reply, w.SegmentsMerged) and is_index(c.target)
    return IllegalArgument(IS_INDEX, segment=c.target) if merged else None


@_request(w.MergeSegments, segment="source", afterwards=_no_index_of_an_index, named=lambda c: c.attribute_updates)
def _merge(store: SegmentStore, c: w.MergeSegments, now_ms: int) -> Command:
    updates = [
        AttributeUpdate.from_wire(update.attribute_id, update.attribute_update_type, update.new_value, update.old_value)
        for update in c.attribute_updates
    ]
    try:
        length = store.merge(c.target, c.source, updates, now_ms=now_ms)
    except BadAttribute:
        return w.SegmentAttributeUpdated(c.request_id, False)
    return w.SegmentsMerged(c.request_id, c.target, c.source, length)


def _batch_access(c: w.MergeSegmentsBatch) -> Iterable[tuple[str, Permission]]:
    yield c.target_segment_id, Permission.READ_UPDATE
    for source in c.source_segment_ids:
        yield source, Permission.READ


@_request(w.MergeSegmentsBatch, segment="target_segment_id", access=_batch_access, named=lambda c: c.source_segment_ids)
def _merge_batch(store: SegmentStore, c: w.MergeSegmentsBatch, now_ms: int) -> Command:
    lengths = store.merge_batch(c.target_segment_id, c.source_segment_ids, now_ms=now_ms)
    return w.SegmentsBatchMerged(c.request_id, c.target_segment_id, c.source_segment_ids, tuple(lengths))


# --- tables -----------------------------------------------------------------------------------------------------


def _entries(entries: Iterable[tuple[bytes, int, bytes]]) -> w.TableEntries:
    return w.TableEntries(
        tuple(w.TableEntry(w.TableKey(key, version), w.TableValue(value)) for key, version, value in entries)
    )


@_request(w.CreateTableSegment)
def _create_table(store: SegmentStore, c: w.CreateTableSegment, now_ms: int) -> Command:
    store.container_for(c.segment).create_table_segment(
        c.segment, key_length=c.key_length, rollover_size=c.rollover_size_bytes, now_ms=now_ms
    )
    return w.SegmentCreated(c.request_id, c.segment)


@_request(w.DeleteTableSegment)
def _delete_table(store: SegmentStore, c: w.DeleteTableSegment, _: int) -> Command:
    store.container_for(c.segment).delete_table_segment(c.segment, must_be_empty=c.must_be_empty)
    return w.SegmentDeleted(c.request_id, c.segment)


@_request(w.GetTableSegmentInfo, segment="segment_name")
def _table_info(store: SegmentStore, c: w.GetTableSegmentInfo, _: int) -> Command:
    return w.TableSegmentInfo(c.request_id, c.segment_name, *store.table(c.segment_name).info())


@_request(w.UpdateTableEntries, offset="table_segment_offset", named=lambda c: c.table_entries.entries)
def _update_entries(store: SegmentStore, c: w.UpdateTableEntries, now_ms: int) -> Command:
    entries = [(entry.key.data, entry.value.data, entry.key.key_version) for entry in c.table_entries.entries]
    versions = store.container_for(c.segment).update_table(
        c.segment, entries, offset=c.table_segment_offset, now_ms=now_ms
    )
    return w.TableEntriesUpdated(c.request_id, tuple(versions))


@_request(w.RemoveTableKeys, offset="table_segment_offset", named=lambda c: c.keys)
def _remove_keys(store: SegmentStore, c: w.RemoveTableKeys, now_ms: int) -> Command:
    keys = [(key.data, key.key_version) for key in c.keys]
    store.container_for(c.segment).remove_table_keys(c.segment, keys, offset=c.table_segment_offset, now_ms=now_ms)
    return w.TableKeysRemoved(c.request_id, c.segment)


@_request(w.ReadTable, named=lambda c: c.keys)
def _read_table(store: SegmentStore, c: w.ReadTable, _: int) -> Command:
    entries = store.table(c.segment).get([key.data for key in c.keys])
    return w.TableRead(c.request_id, c.segment, _entries(entries))


@_request(w.ReadTableKeys)
def _read_keys(store: SegmentStore, c: w.ReadTableKeys, _: int) -> Command:
    args = c.args
    count = min(c.suggested_key_count, _PAGE_ITEMS)
    entries, token = store.table(c.segment).iterate(
        count, args.continuation_token, args.from_key, args.to_key, with_values=False
    )
    keys = tuple(w.TableKey(key, version) for key, version, _ in entries)
    return w.TableKeysRead(c.request_id, c.segment, keys, token)


@_request(w.ReadTableEntries)
def _read_entries(store: SegmentStore, c: w.ReadTableEntries, _: int) -> Command:
    args = c.args
    count = min(c.suggested_entry_count, _PAGE_ITEMS)
    entries, token = store.table(c.segment).iterate(count, args.continuation_token, args.from_key, args.to_key)
    return w.TableEntriesRead(c.request_id, c.segment, _entries(entries), token)


@_request(w.ReadTableEntriesDelta)
def _read_delta(store: SegmentStore, c: w.ReadTableEntriesDelta, _: int) -> Command:
    delta = store.table(c.segment).delta(c.from_position, min(c.suggested_entry_count, _PAGE_ITEMS))
    return w.TableEntriesDeltaRead(
        c.request_id, c.segment, _entries(delta.entries), delta.should_clear, delta.reached_end, delta.last_position
    )


def _refuse_legacy(_: SegmentStore, c: Command, __: int) -> Command:
    raise Unsupported(f"{c.type_name} is a request of older clients that no store serves any more")


_request(w.SealTableSegment)(_refuse_legacy)
_request(w.MergeTableSegments, segment="target")(_refuse_legacy)


# --- the admin port ---------------------------------------------------------------------------------------------


@_request(w.FlushToStorage, segment="", admin_only=True)
def _flush(store: SegmentStore, c: w.FlushToStorage, _: int) -> Command:
    if c.container_id not in store.containers:
        raise errors.Unmapped(f"container {c.container_id} is not owned here")
    return w.StorageFlushed(c.request_id)


@_request(w.ListStorageChunks, admin_only=True)
def _list_chunks(store: SegmentStore, c: w.ListStorageChunks, _: int) -> Command:
    try:
        segment = store.segment(c.segment)
    except (errors.NoSuchSegment, errors.NotOwner) as error:
        raise errors.Unmapped(error.message, segment=c.segment) from error
    start, size = segment.start_offset, segment.length - segment.start_offset
    return w.StorageChunksListed(c.request_id, (w.ChunkInfo(size, 0, start, c.segment, False),) if size else ())


# --- errors -----------------------------------------------------------------------------------------------------


def refuse(
    session: Session,
    error: Exception,
    request_id: int,
    segment: str,
    operation: str,
    offset: int = -1,
    writer_id: UUID | None = None,
) -> None:
    """Replies to a request that failed. Ends its session if the protocol has no reply for the error, or if it is a
    writer that cannot go on.

    segment: the name in the reply, taken from the request and not from the error.
    offset: the offset of a read, the event number of an append, else -1.
    writer_id: set for appends and their set-up; a failed attribute update then means an invalid event number.
    """
    if isinstance(error, errors.Unanswered):
        return
    with_trace = session.admin or session.service.settings.stack_traces  # always on the reference's admin port
    trace = "".join(traceback.format_exception(error))[-_MAX_TRACE_CHARACTERS:] if with_trace else ""
    reply: Command | None = None
    match error:
        case errors.SegmentExists():
            reply = w.SegmentAlreadyExists(request_id, segment, trace)
        case errors.NoSuchSegment():
            reply = w.NoSuchSegment(request_id, segment, trace, -1 if writer_id is not None else offset)
        case errors.SegmentSealed():
            reply = w.SegmentIsSealed(request_id, segment, trace, offset)
        case errors.NotOwner():
            reply = w.WrongHost(request_id, segment, "", trace)
        case errors.SegmentTruncated():
            reply = w.SegmentIsTruncated(request_id, segment, error.start_offset, trace, offset)
        case errors.BadOffset():
            reply = w.SegmentIsTruncated(request_id, segment, error.actual, trace, offset)
        case errors.IndexTruncated():
            reply = w.SegmentTruncated(request_id, segment)
        case errors.BadAttribute() if writer_id is not None:
            reply = w.InvalidEventNumber(writer_id, request_id, trace, offset)
        case TokenExpired():
            reply = w.AuthTokenCheckFailed(request_id, trace, AuthTokenErrorCode.TOKEN_EXPIRED)
        case TokenRefused():
            reply = w.AuthTokenCheckFailed(request_id, trace, AuthTokenErrorCode.TOKEN_CHECK_FAILED)
        case errors.Unsupported():
            reply = w.OperationUnsupported(request_id, operation, trace)
        case errors.TableNotEmpty():
            reply = w.TableSegmentNotEmpty(request_id, segment, trace)
        case errors.KeyMissing():
            reply = w.TableKeyDoesNotExist(request_id, segment, trace)
        case errors.KeyBadVersion():
            reply = w.TableKeyBadVersion(request_id, segment, trace)
        case errors.IllegalArgument():
            reply = w.ErrorMessage(request_id, segment, error.message, ErrorMessageCode.ILLEGAL_ARGUMENT_EXCEPTION)
    if reply is not None:
        session.reply(reply)
    if reply is None or (writer_id is not None and isinstance(error, (BadAttribute, TokenExpired))):
        session.end(f"{operation} on {segment!r} failed: {error}", SessionEnding.FLUSHED)
