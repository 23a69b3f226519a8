from __future__ import annotations

from uuid import UUID

from segstore.wire.blocks import framed
from segstore.wire.commands import AppendSetup, ConditionalBlockEnd, DataAppended, SetupAppend
from segstore.wire.history import Key
from segstore.wire.history.facts import GroupUpdate
from segstore.wire.reader_groups import AcquireSegment, AddReader, ReleaseSegment, Update, encode_update
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
