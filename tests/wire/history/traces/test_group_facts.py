from __future__ import annotations

from uuid import UUID

from segstore.wire.blocks import framed
from segstore.wire.commands import AppendSetup, ConditionalBlockEnd, DataAppended, SetupAppend
from segstore.wire.history import Key
from segstore.wire.history.facts import Assignment
from segstore.wire.reader_groups import AcquireSegment, AddReader, ReleaseSegment, encode_update
from segstore.wire.revisioned import encode_updates
from tests.wire.history.traces.support import facts_of

WRITER = UUID(int=7)
STATE = "s/_RGgroup/0.#epoch.0"


def assignments(data: bytes, segment: str = STATE) -> list[Assignment]:
    append = ConditionalBlockEnd(WRITER, 1, 40, framed([data])[0], 2)
    facts = facts_of(
        *(SetupAppend(1, WRITER, segment, ""), AppendSetup(1, segment, WRITER, 0)),
        append,
        DataAppended(2, WRITER, 1, 0, 90),
    )
    found = [fact for fact in facts if fact.key.kind == "group"]
    assert {fact.key for fact in found} <= {Key("group", STATE)}
    updates = [fact.value for fact in facts if fact.key == Key("positions", "s")]
    assert [(update.order, update.end) for update in updates] == [(40, 48 + len(data))][: len(found)]
    return [fact.value for fact in found]


def test_assignments_are_in_the_order_of_their_offsets() -> None:
    steps = [AddReader("a"), AcquireSegment("a", "s/t/0"), ReleaseSegment("a", "s/t/0", 7)]
    data = encode_updates([encode_update(step) for step in steps])
    assert assignments(data) == [
        Assignment("updated", "", order=40, end=48 + len(data)),
        Assignment("acquired", "a", "s/t/0", 40),
        Assignment("released", "a", "s/t/0", 40),
    ]
    assert assignments(data, "s/t/0.#epoch.0") == []


def test_another_application_may_use_such_a_name() -> None:
    assert assignments(b"no state") == []
