"""Each rule of the protocol is found where it was broken, and nothing else; what is undecided stays open."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    AuthTokenCheckFailed,
    DataAppended,
    KeepAlive,
    MergeSegments,
    ReadSegment,
    SegmentAttributeUpdated,
    SegmentRead,
    SegmentSealed,
    SetupAppend,
)
from segstore.wire.history import RULES, Verdicts, judge, placed
from segstore.wire.history.traces import protocol
from segstore.wire.request_id import pack
from segstore.wire.trace import Record, read_lines
from tests.pipeline.planted import Scene, planted, soup
from tests.wire.trace.traces import frame

if TYPE_CHECKING:
    from collections.abc import Callable

RECORDED = Path(__file__).parent.parent.parent.parent / "fixtures" / "traces"
OF_PROTOCOL = {rule.id for rule in RULES.values() if rule.family == "Protocol"}


def broken(verdicts: Verdicts) -> Counter[str]:
    return Counter(each.rule for each in verdicts.broken if each.rule in OF_PROTOCOL)


def test_every_planted_fault_is_found_and_nothing_else() -> None:
    for seed in range(3):
        records, planted_faults = planted(seed)
        expected = planted_faults.broken
        assert broken(judge(placed(records))) == {rule: expected[rule] for rule in expected.keys() & OF_PROTOCOL}
        assert expected.keys() >= OF_PROTOCOL


def test_the_recorded_traces_of_the_official_clients_break_no_rule() -> None:
    for path in RECORDED.glob("*.jsonl"):
        with path.open() as lines:
            records = [record for record in read_lines(lines) if isinstance(record, Record)]
        assert records
        assert broken(judge(placed(records))) == {}, path


def test_commands_in_any_order_break_every_rule_and_raise_nothing() -> None:
    found: Counter[str] = Counter()
    for seed in range(5):
        found += broken(judge(placed(soup(seed, 1000))))
    assert found.keys() == OF_PROTOCOL


def token_refused(scene: Scene) -> None:
    """The reference sends the read's offset in place of the request id."""
    scene.ask(ReadSegment("s", 70, 1, "", 5))
    scene.reply(AuthTokenCheckFailed(70, ""))


def merge_refused(scene: Scene) -> None:
    scene.ask(MergeSegments(5, "t", "s", ""))
    scene.reply(SegmentAttributeUpdated(5, False))


def alive_in_a_block(scene: Scene) -> None:
    writer = scene.writer("s")
    scene.ask(AppendBlock(writer, bytes(50)))
    scene.ask(KeepAlive())
    scene.ask(AppendBlockEnd(writer, 50, b"", 1, 1, 7))


def covered_id_again(scene: Scene) -> None:
    writer = scene.writer("s")
    covered = scene.append(writer, 1)
    scene.ack(scene.append(writer, 2), writer, 2)
    scene.ask(ReadSegment("s", 0, 1, "", covered))
    scene.reply(SegmentRead("s", 0, False, False, b"", covered))


def set_up_again(scene: Scene) -> None:
    """A writer has one request id, also when it sets itself up again because a reply is lost."""
    writer = UUID(int=1)
    scene.ask(SetupAppend(7, writer, "s", ""))
    for _ in range(2):
        scene.ask(SetupAppend(7, writer, "s", ""))
        scene.reply(AppendSetup(7, "s", writer, 0))
        scene.ask(AppendBlock(writer, bytes(50)))
        scene.ask(AppendBlockEnd(writer, 50, b"", 1, 1, 7))
    scene.reply(DataAppended(7, writer, 1, 0, 50))


def flow_of_a_writer_that_moved(scene: Scene) -> None:
    """Its append on the flow is acknowledged after its set-up on another flow."""
    writer, flows = UUID(int=1), (pack(1, 0), pack(2, 0))
    scene.ask(SetupAppend(flows[0], writer, "s", ""))
    scene.reply(AppendSetup(flows[0], "s", writer, 0))
    scene.ask(AppendBlock(writer, bytes(50)))
    scene.ask(AppendBlockEnd(writer, 50, b"", 1, 1, flows[0]))
    scene.ask(SetupAppend(flows[1], writer, "s", ""))
    scene.reply(DataAppended(flows[0], writer, 1, 0, 50))
    scene.ask(SetupAppend(flows[0], UUID(int=2), "s", ""))


def id_of_another_writer(scene: Scene) -> None:
    for number in (1, 2):
        scene.ask(SetupAppend(7, UUID(int=number), "s", ""))


def other_kind_after_a_set_up(scene: Scene) -> None:
    """When nothing waits any more, the id of a writer that was set up again is free."""
    writer = UUID(int=1)
    for _ in range(2):
        scene.ask(SetupAppend(7, writer, "s", ""))
    for _ in range(2):
        scene.reply(AppendSetup(7, "s", writer, 0))
    scene.ask(ReadSegment("s", 0, 1, "", 7))
    scene.reply(SegmentSealed(7, "s"))


RIGHT = (*(token_refused, merge_refused, alive_in_a_block, set_up_again, covered_id_again), flow_of_a_writer_that_moved)


@pytest.mark.parametrize(
    ("play", "rule"), [(id_of_another_writer, "request-id-reuse"), (other_kind_after_a_set_up, "reply-kind")]
)
def test_a_wrong_connection_breaks_its_rule(play: Callable[[Scene], None], rule: str) -> None:
    scene = Scene(1)
    play(scene)
    assert broken(judge(placed(scene.records))) == {rule: 1}


@pytest.mark.parametrize("play", RIGHT)
def test_a_right_connection_breaks_no_rule(play: Callable[[Scene], None]) -> None:
    scene = Scene(1)
    play(scene)
    assert broken(judge(placed(scene.records))) == {}


def test_verdicts_name_their_records_and_values() -> None:
    scene = Scene(1)
    writer = scene.writer("s")
    scene.append(writer, 5)
    scene.append(writer, 4)
    scene.ask(frame(0))
    for _ in range(2):
        scene.ask(ReadSegment("s", 0, 1, "", 50))
    verdicts = judge(placed(scene.records, "a"))
    facts = [(each.rule, [at.record for at in each.places], each.expected, each.actual) for each in verdicts.broken]
    assert facts == [
        ("number-backwards", [6], 5, 4), ("known-command", [7], None, 0), ("request-id-reuse", [8, 9], None, None)
    ]  # fmt: skip
    assert {(each.key, each.places[-1].file) for each in verdicts.broken} == {(("connection", "a:1"), "a")}


def test_a_recording_without_the_opening_leaves_requests_open() -> None:
    scene = Scene(1, opened=False)
    scene.reply(SegmentRead("s", 0, False, False, b"", 9))
    scene.append(UUID(int=1), 4)
    verdicts = judge(placed(scene.records))
    assert broken(verdicts) == {}
    assert verdicts.unknown["reply-without-request", "the recording began after the opening"] == 1


def test_requests_beyond_the_bound_are_dropped_and_their_replies_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_WAITING", 3)
    scene = Scene(1)
    first, *_, last = [scene.read("s", answered=False) for _ in range(5)]
    for request_id in (first, last):
        scene.reply(SegmentRead("s", 0, False, False, b"", request_id))
    verdicts = judge(placed(scene.records))
    assert broken(verdicts) == {}
    assert verdicts.unknown["reply-without-request", "too many requests wait on the connection"] == 1
