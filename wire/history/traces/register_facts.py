"""Facts of requests about registers: keys of tables, and attributes of segments.

An update of several keys is atomic: each key has its operation. When it is refused, the reply does not say which key's
condition failed, so this makes no fact. A failure that precedes the update, such as of a missing segment, makes none
either; any other failure leaves the outcome unknown. Pages of an iteration are reads of the keys that they have.

Source: `PravegaRequestProcessor`, `HashTableSegmentLayout` (Pravega).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, Final

from segstore.wire.commands import (
    NO_VERSION,
    NOT_EXISTS,
    AuthTokenCheckFailed,
    CreateTableSegment,
    DeleteSegment,
    DeleteTableSegment,
    GetSegmentAttribute,
    NoSuchSegment,
    OperationUnsupported,
    ReadTable,
    ReadTableEntries,
    ReadTableKeys,
    RemoveTableKeys,
    SegmentAttribute,
    SegmentAttributeUpdated,
    SegmentCreated,
    SegmentDeleted,
    SegmentIsSealed,
    SegmentIsTruncated,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableKeysRead,
    TableKeysRemoved,
    TableRead,
    UpdateSegmentAttribute,
    UpdateTableEntries,
)
from segstore.wire.history.facts import Fact, Operation, Place, Waiting, register_key
from segstore.wire.history.traces.segment_facts import OF_SEGMENTS, Maker, Unanswered
from segstore.wire.schema import Buffer, Command

_NOT_APPLIED: Final = (AuthTokenCheckFailed, NoSuchSegment, OperationUnsupported, SegmentIsSealed, SegmentIsTruncated)
_LARGE_BYTES: Final = 64

_Update = tuple[str, Any, int | None, int | None]
"""A key in hex, its new value or None, its expected version, its new version."""


def _fact(place: Place, request: Waiting, segment: str, register: str, what: str, outcome: str, **facts: Any) -> Fact:
    values = {"value": None, "expected": None, "version": None, **facts}
    operation = Operation(what, outcome=outcome, invoked=request.place, register=register, **values)
    return Fact(register_key(segment), place, operation)


def _value(data: Buffer) -> bytes:
    """Returns the bytes of a value, or of a large value its hash, which takes less memory."""
    return bytes(data) if len(data) <= _LARGE_BYTES else blake2b(data, digest_size=16).digest()


# --- updates of tables ------------------------------------------------------------------------------------------------


def _updates(command: Any, versions: Iterable[int | None]) -> list[_Update]:
    """Returns the updates of a request, one per key: of several for one key, the last wins."""
    updates: dict[str, _Update] = {}
    keyed: list[tuple[Any, bytes | None]]
    if isinstance(command, UpdateTableEntries):
        keyed = [(entry.key, _value(entry.value.data)) for entry in command.table_entries.entries]
    else:
        keyed = [(key, None) for key in command.keys]
    for (key, value), version in zip(keyed, versions, strict=False):
        name = bytes(key.data).hex()
        expected = None if key.key_version == NO_VERSION else key.key_version
        if name in updates and expected is None:
            expected = updates[name][2]
        updates[name] = (name, value, expected, version)
    return [update for name, update in updates.items() if name]  # an empty key loses its version on the wire


def _update_facts(place: Place, request: Waiting, outcome: str, versions: Iterable[int | None]) -> Iterator[Fact]:
    command = request.command
    what = "put" if isinstance(command, UpdateTableEntries) else "remove"
    for name, value, expected, version in _updates(command, versions):
        yield _fact(
            place, request, command.segment, name, what, outcome, value=value, expected=expected, version=version
        )


def _count(command: Any) -> int:
    return len(command.table_entries.entries if isinstance(command, UpdateTableEntries) else command.keys)


def _updated(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    """Makes facts of an update or removal. There are four replies:

    1. success; 2. a condition failed, which says something if there is one key; 3. nothing was done; 4. unknown.
    """
    nothing = [None] * _count(request.command)
    if isinstance(reply, TableEntriesUpdated):
        yield from _update_facts(place, request, "ok", reply.updated_versions)
    elif isinstance(reply, TableKeysRemoved):
        yield from _update_facts(place, request, "ok", nothing)
    elif isinstance(reply, TableKeyBadVersion | TableKeyDoesNotExist):
        if len(nothing) == 1:
            version = NOT_EXISTS if isinstance(reply, TableKeyDoesNotExist) else None
            yield from _update_facts(place, request, "refused", [version])
    elif not isinstance(reply, _NOT_APPLIED):
        yield from _unanswered_update(request)


def _unanswered_update(request: Waiting) -> Iterator[Fact]:
    yield from _update_facts(request.place, request, "unknown", [None] * _count(request.command))


# --- reads of tables --------------------------------------------------------------------------------------------------


def _read(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    if isinstance(reply, TableRead | TableEntriesRead):
        for entry in reply.entries.entries:
            yield from _key_read(place, request, entry.key, _value(entry.value.data))
    elif isinstance(reply, TableKeysRead):
        for key in reply.keys:
            yield from _key_read(place, request, key, None)


def _key_read(place: Place, request: Waiting, key: Any, value: bytes | None) -> Iterator[Fact]:
    if key.data and key.key_version >= NOT_EXISTS:
        value = None if key.key_version == NOT_EXISTS else value
        name, segment = bytes(key.data).hex(), request.command.segment
        yield _fact(place, request, segment, name, "read", "ok", value=value, version=key.key_version)


# --- attributes, and the ends of registers ----------------------------------------------------------------------------


def _attribute_facts(place: Place, request: Waiting, what: str, outcome: str, **facts: Any) -> Iterator[Fact]:
    command = request.command
    yield _fact(place, request, command.segment_name, str(command.attribute_id), what, outcome, **facts)


def _attribute(value: int) -> int | None:
    return None if value == NO_VERSION else value  # the same number says that there is no value


def _attribute_read(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    if isinstance(reply, SegmentAttribute):
        yield from _attribute_facts(place, request, "read", "ok", value=_attribute(reply.value))


def _attribute_set(place: Place, request: Waiting, outcome: str) -> Iterator[Fact]:
    new, expected = _attribute(request.command.new_value), _attribute(request.command.expected_value)
    expected_or_none = "" if expected is None else expected
    yield from _attribute_facts(place, request, "set", outcome, value=new, expected=expected_or_none)


def _attribute_updated(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    if isinstance(reply, SegmentAttributeUpdated):
        yield from _attribute_set(place, request, "ok" if reply.success else "refused")
    elif not isinstance(reply, _NOT_APPLIED):
        yield from _attribute_set(request.place, request, "unknown")


def _whole(kind: type[Command], what: str) -> Maker:
    def make(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
        if isinstance(reply, kind):
            yield _fact(place, request, request.command.segment, "", what, "ok")

    return make


def _segment_deleted(place: Place, request: Waiting, reply: Command) -> Iterator[Fact]:
    yield from OF_SEGMENTS[DeleteSegment](place, request, reply)
    yield from _whole(SegmentDeleted, "deleted")(place, request, reply)


def _maybe_deleted(request: Waiting) -> Iterator[Fact]:
    yield _fact(request.place, request, request.command.segment, "", "deleted", "unknown")


OF_REGISTERS: Final[dict[type[Command], Maker]] = {
    UpdateTableEntries: _updated,
    RemoveTableKeys: _updated,
    ReadTable: _read,
    ReadTableKeys: _read,
    ReadTableEntries: _read,
    GetSegmentAttribute: _attribute_read,
    UpdateSegmentAttribute: _attribute_updated,
    CreateTableSegment: _whole(SegmentCreated, "created"),
    DeleteTableSegment: _whole(SegmentDeleted, "deleted"),
    DeleteSegment: _segment_deleted,
}
UNANSWERED_REGISTERS: Final[dict[type[Command], Unanswered]] = {
    UpdateTableEntries: _unanswered_update,
    RemoveTableKeys: _unanswered_update,
    UpdateSegmentAttribute: lambda request: _attribute_set(request.place, request, "unknown"),
    DeleteSegment: _maybe_deleted,
    DeleteTableSegment: _maybe_deleted,
}
