"""Facts of requests about registers: keys of tables, and attributes of segments.

An update of several keys is atomic: each key has its operation. When it is refused, the reply does not say which key's
condition failed, so this makes no fact. A failure that precedes the update, such as of a missing segment, makes none
either; any other failure, or no reply, leaves the outcome unknown. Pages of an iteration are reads of their keys.

Source: `PravegaRequestProcessor`, `HashTableSegmentLayout` (Pravega).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import repeat
from typing import Any, Final

from segstore.wire import commands as c
from segstore.wire.commands import NO_VERSION, NOT_EXISTS
from segstore.wire.history.facts import Fact, Key, Operation, Place, Waiting
from segstore.wire.history.traces.group_facts import table_update
from segstore.wire.history.traces.segment_facts import OF_SEGMENTS, Maker
from segstore.wire.schema import Buffer, Command

_NOT_APPLIED: Final = (
    *(c.AuthTokenCheckFailed, c.NoSuchSegment, c.OperationUnsupported, c.SegmentIsSealed, c.SegmentIsTruncated),
)
_OUTCOMES: Final[dict[Any, str]] = {
    **dict.fromkeys((c.TableEntriesUpdated, c.TableKeysRemoved), "ok"),
    **dict.fromkeys((c.TableKeyBadVersion, c.TableKeyDoesNotExist), "refused"),
}
"""The outcome of an update of a table by its reply; it is unknown by another reply, or without a reply."""
_LARGE_BYTES: Final = 64


def _fact(
    place: Place, request: Waiting, segment: str, what: str, outcome: str = "ok", register: str = "", **values: Any
) -> Fact:
    operation = Operation(what, outcome, request.place, register=register, **values)
    return Fact(Key("register", segment), request.place if outcome == "unknown" else place, operation)


def _value(data: Buffer) -> bytes:
    """Returns the bytes of a value, or of a large value its hash, which takes less memory."""
    return bytes(data) if len(data) <= _LARGE_BYTES else blake2b(data, digest_size=16).digest()


# --- updates of tables ------------------------------------------------------------------------------------------------


def _updated(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    """Makes facts of an update or removal, one per key: of several updates of a key, the last wins."""
    versions: Iterable[int | None] = repeat(None)
    command, what = request.command, "remove"
    entries: list[tuple[Any, bytes | None]] = [(key, None) for key in getattr(command, "keys", ())]
    if isinstance(command, c.UpdateTableEntries):
        what, entries = "put", [(entry.key, _value(entry.value.data)) for entry in command.table_entries.entries]
    outcome = _OUTCOMES.get(type(reply), "unknown")
    if isinstance(reply, _NOT_APPLIED) or (outcome == "refused" and len(entries) > 1):
        return
    if isinstance(reply, c.TableEntriesUpdated):
        versions = reply.updated_versions
    elif isinstance(reply, c.TableKeyDoesNotExist):
        versions = repeat(NOT_EXISTS)
    updates: dict[str, dict[str, Any]] = {}
    for (key, value), version in zip(entries, versions, strict=False):
        name = bytes(key.data).hex()
        expected = updates.get(name, {}).get("expected") if key.key_version == NO_VERSION else key.key_version
        updates[name] = {"value": value, "expected": expected, "version": version}
    updates.pop("", None)  # an empty key loses its version on the wire
    for name, values in updates.items():
        yield _fact(place, request, command.segment, what, outcome, name, **values)


def _entries_updated(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    yield from _updated(place, request, reply)
    yield from table_update(place, request, reply)


# --- reads of tables --------------------------------------------------------------------------------------------------


def _read(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    entries: list[tuple[Any, bytes | None]] = []
    if isinstance(reply, c.TableRead | c.TableEntriesRead):
        entries = [(entry.key, _value(entry.value.data)) for entry in reply.entries.entries]
    elif isinstance(reply, c.TableKeysRead):
        entries = [(key, None) for key in reply.keys]
    for key, value in entries:
        name, version = bytes(key.data).hex(), key.key_version
        if name and version >= NOT_EXISTS:
            content = None if version == NOT_EXISTS else value
            yield _fact(place, request, request.command.segment, "read", register=name, value=content, version=version)


# --- attributes, and the ends of registers ----------------------------------------------------------------------------


def _attribute(value: int) -> int | None:
    return None if value == NO_VERSION else value  # the same number says that there is no value


def _attribute_read(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    if isinstance(reply, c.SegmentAttribute):
        segment, register = request.command.segment_name, str(request.command.attribute_id)
        yield _fact(place, request, segment, "read", register=register, value=_attribute(reply.value))


def _attribute_updated(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    if isinstance(reply, _NOT_APPLIED):
        return
    outcome, command = "unknown", request.command
    if isinstance(reply, c.SegmentAttributeUpdated):
        outcome = "ok" if reply.success else "refused"
    expected = _attribute(command.expected_value)
    values = {"value": _attribute(command.new_value), "expected": "" if expected is None else expected}
    yield _fact(place, request, command.segment_name, "set", outcome, str(command.attribute_id), **values)


def _created(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    if isinstance(reply, c.SegmentCreated):
        yield _fact(place, request, request.command.segment, "created")


def _deleted(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    if isinstance(request.command, c.DeleteSegment):
        yield from OF_SEGMENTS[c.DeleteSegment](place, request, reply)
    if reply is None or isinstance(reply, c.SegmentDeleted):
        yield _fact(place, request, request.command.segment, "deleted", "unknown" if reply is None else "ok")


OF_REGISTERS: Final[dict[type[Command], Maker]] = {
    c.UpdateTableEntries: _entries_updated,
    c.RemoveTableKeys: _updated,
    c.ReadTable: _read,
    c.ReadTableKeys: _read,
    c.ReadTableEntries: _read,
    c.GetSegmentAttribute: _attribute_read,
    c.UpdateSegmentAttribute: _attribute_updated,
    c.CreateTableSegment: _created,
    c.DeleteTableSegment: _deleted,
    c.DeleteSegment: _deleted,
}
