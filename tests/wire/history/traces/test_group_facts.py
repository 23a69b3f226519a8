from __future__ import annotations

from uuid import UUID

from segstore.wire.blocks import framed
from segstore.wire.commands import (
    AppendSetup,
    ConditionalBlockEnd,
    DataAppended,
    SetupAppend,
    TableEntries,
    TableEntriesUpdated,
    TableEntry,
    TableKey,
    TableValue,
    UpdateTableEntries,
)
from segstore.wire.history import Key
from segstore.wire.history.facts import GroupUpdate, TableUpdate
from segstore.wire.reader_groups import (
    ASSIGNED,
    VERSION_VALUE,
    AcquireSegment,
    AddReader,
    ReleaseSegment,
    StoredGroup,
    Update,
    encode_key,
    encode_update,
)
from segstore.wire.revisioned import encode_updates
from tests.wire.history.traces.support import facts_of

WRITER = UUID(int=7)
STATE = "s/_RGgroup/0.#epoch.0"


def test_updates_of_a_group_have_offsets() -> None:
    steps: list[Update] = [AddReader("a"), AcquireSegment("a", "s/t/0"), ReleaseSegment("a", "s/t/0", 7)]
    state = encode_updates([encode_update(step) for step in steps])
    update = GroupUpdate(STATE, 40, 48 + len(state), tuple(steps))
    for data, segment, updates in (
        (state, STATE, [update]),
        (state, "s/t/0.#epoch.0", []),
        (b"no state", STATE, []),  # another application may use such a name
    ):
        facts = facts_of(
            *(SetupAppend(1, WRITER, segment, ""), AppendSetup(1, segment, WRITER, 0)),
            ConditionalBlockEnd(WRITER, 1, 40, framed([data])[0], 2),
            DataAppended(2, WRITER, 1, 0, 90),
        )
        assert [fact.value for fact in facts if fact.key == Key("positions", "s")] == updates


def test_updates_of_a_group_in_a_table_have_versions() -> None:
    first, second = "s/t/0.#epoch.0", "s/t/1.#epoch.0"
    group = StoredGroup()
    group.readers |= {"a": {first: 0, second: 5}, "b": {}}
    later = group.copy()
    later.readers = {"a": {first: 7}}
    later.unassigned[second] = 6
    entries = [(encode_key(entry.outer, entry.inner), -1, entry.value) for entry in group.changes_to(later)]
    entries.append((encode_key(ASSIGNED, None), 40, VERSION_VALUE))
    table = "s/g_kvtable/0.#epoch.0"
    update = TableUpdate(table, 40, 90, {"a": {first: 7}, "b": None}, {second: 6})
    for segment, key, updates in (
        (table, b"", [update]),
        ("s/table/0.#epoch.0", b"", []),
        (table, b"no key of a group", []),  # another application may use such a name
    ):
        sent = TableEntries(
            [TableEntry(TableKey(key or name, version), TableValue(value)) for name, version, value in entries]
        )
        facts = facts_of(UpdateTableEntries(1, segment, "", sent), TableEntriesUpdated(1, [87, 88, 89, 90]))
        assert [fact.value for fact in facts if fact.key == Key("positions", "s")] == updates
