"""Connections that share a segment or a writer are in one part; all others may be apart."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

from segstore.pipeline.local_engine import LocalEngine
from segstore.pipeline.replay_plan import LINK_COLUMNS, ConnectionUse, PartOutcome, _replayed, links, plan
from segstore.wire import MergeSegmentsBatch, ReadSegment, SetupAppend
from segstore.wire.errors import OutOfOrder
from segstore.wire.names import transaction_name
from segstore.wire.trace import Record
from tests.pipeline.support import write_fixture
from tests.wire.trace.traces import record


def linked(*pairs: tuple[int, str | None]) -> list[ConnectionUse]:
    return [ConnectionUse("a", connection, key, 0) for connection, key in pairs] + [
        ConnectionUse("a", connection, None, 10) for connection in {connection for connection, _ in pairs}
    ]


def test_what_hangs_together_over_a_third_is_in_one_part() -> None:
    found = plan(linked((1, "x"), (2, "x"), (2, "y"), (3, "y"), (4, "z"), (5, None)), 3)
    assert [part.connections for part in found.parts] == [
        (("a", 1), ("a", 2), ("a", 3)), (("a", 4),), (("a", 5),)
    ]  # fmt: skip
    assert found.components == 3
    assert found.hubs == ((("a", 2), 2), (("a", 1), 1), (("a", 3), 1))


def test_transactions_batches_of_merges_and_writers_tie_connections(tmp_path: Path) -> None:
    segment, other = "scope/s/0.#epoch.0", "scope/s/1.#epoch.0"
    records = [
        record(ReadSegment(segment, 0, 1, "", 1), connection=1),
        record(ReadSegment(transaction_name(segment, UUID(int=7)), 0, 1, "", 1), connection=2),
        record(MergeSegmentsBatch(1, "target", [other, "b"], ""), connection=3),
        record(ReadSegment(other, 0, 1, "", 1), connection=4),
        record(SetupAppend(1, UUID(int=1), "c", ""), connection=5),
        record(SetupAppend(1, UUID(int=1), "d", ""), connection=6),
        record(ReadSegment("alone", 0, 1, "", 1), connection=7),
    ]
    path = write_fixture(tmp_path / "a.jsonl", records)
    (tmp_path / "work").mkdir()
    with LocalEngine(tmp_path / "work", 0) as engine:
        found = plan(links(engine.read([str(path)], (*LINK_COLUMNS, "kind", "fields"))), 4)
    together = {tuple(connection for _, connection in part.connections) for part in found.parts}
    assert together == {(1, 2), (3, 4), (5, 6), (7,)}


def test_an_error_of_one_part_is_its_outcome_and_the_next_part_is_replayed() -> None:
    def run(part: int, records: list[Record]) -> PartOutcome:
        if part < len(errors):
            raise errors[part]
        return PartOutcome(part, len(records), 0, 0, [])

    def rows(part: int) -> SimpleNamespace:
        facts = {"ts_ns": 1, "direction": "reply", "kind": "frame", "frame": b"abc"}
        return SimpleNamespace(part=part, file="a", connection=part, **facts)

    errors = [OSError("no route"), ValueError("no name"), OutOfOrder("no handshake", type_name="HELLO")]
    outcomes = list(_replayed(run, map(rows, range(4))))
    said = ["OSError: no route", "ValueError: no name", "OutOfOrder: HELLO: no handshake", None]
    assert [outcome.error for outcome in outcomes] == said
    assert outcomes[3].requests == 1
