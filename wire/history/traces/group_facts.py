"""Facts of a reader group's state, which clients append to the group's stream, or hold in a table, as in Rust."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from segstore.wire import commands as c
from segstore.wire.blocks import EVENT_HEADER_BYTES
from segstore.wire.history.facts import Fact, GroupUpdate, Place, TableUpdate, Waiting, positions_key
from segstore.wire.names import is_reader_group_table
from segstore.wire.reader_groups import ASSIGNED, UNASSIGNED, StoredGroup, decode_key, decode_updates
from segstore.wire.schema import Command

OF_GROUPS: Final = "/_RG"
"""Part of the names of segments that may have such a state."""


def assignments(place: Place, segment: str, append: Waiting) -> Iterator[Fact]:
    """Yields the update of a group's state in an acknowledged append; nothing for unconditional appends.

    place: of the acknowledgement. segment: its name contains `OF_GROUPS`.
    """
    command = append.command
    if not hasattr(command, "expected_offset"):
        return
    data = bytes(command.event.data if hasattr(command, "event") else command.data[EVENT_HEADER_BYTES:])
    try:
        updates = decode_updates(data)
    except ValueError:
        return  # another application's stream that has such a name
    end = command.expected_offset + EVENT_HEADER_BYTES + len(data)
    yield Fact(positions_key(segment), place, GroupUpdate(segment, command.expected_offset, end, tuple(updates)))


def table_update(place: Place, request: Waiting, reply: Command | None) -> Iterator[Fact]:
    """Yields the change of a group's readers by an update of its table; nothing for other tables and updates.

    place: of the reply. Each update of a map of entries has an entry for the map itself, with its version.
    """
    command = request.command
    if not isinstance(reply, c.TableEntriesUpdated) or not is_reader_group_table(command.segment):
        return
    state, orders = StoredGroup(), []
    readers: dict[str, None] = {}
    try:
        for entry, version in zip(command.table_entries.entries, reply.updated_versions, strict=True):
            outer, inner = decode_key(bytes(entry.key.data))
            if inner is not None and outer in (ASSIGNED, UNASSIGNED):
                state.take(outer, inner, bytes(entry.value.data))
                readers |= {inner: None} if outer == ASSIGNED else {}
            elif outer == ASSIGNED:
                orders.append((entry.key.key_version, version))
    except ValueError:
        return  # another application's table that has such a name
    for order, end in orders:
        assigned = {reader: state.readers.get(reader) for reader in readers}
        update = TableUpdate(command.segment, order, end, assigned, dict(state.unassigned))
        yield Fact(positions_key(command.segment), place, update)
