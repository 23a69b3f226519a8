"""What a store was asked: kept within bounds, found by filter, waited for without sleeping."""

import asyncio
from typing import Any, cast

import pytest

from segstore.server import MockSegmentStore
from segstore.server.faults import Faults, Lane, Observer, Seen
from segstore.server.faults.observe import NotObserved, NotSeen, request_seen
from segstore.server.traffic import History
from segstore.wire import ReadSegment, encode
from segstore.wire.blocks import Append
from segstore.wire.trace import FilterError, parse_filter
from tests.server.support import HELLO, SEGMENT, WRITER, FakeClock, Peer, append, create, read, set_up


def seen(number: int, at_s: float = 0.0, segment: str = "a/b/0") -> Seen:
    command = ReadSegment(segment, number, 10, "secret", number)
    return request_seen(command, number, store=0, connection=1, now_s=at_s, started_s=0.0)


def test_the_oldest_requests_are_forgotten_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.server.faults.observe._LOG_BYTES", 5 * 720)
    observer = Observer()
    for number in range(1, 21):
        observer.add(seen(number))
    kept = [request.number for request in observer.requests()]
    assert kept == [16, 17, 18, 19, 20]
    assert observer.forgotten == 15


async def test_requests_are_found_newest_first() -> None:
    observer = Observer()
    for number in range(1, 21):
        observer.add(seen(number, segment=f"a/b/{number % 2}"))
    assert [each.number for each in await observer.find("segment = a/b/1", since=14)] == [19, 17, 15]
    assert await observer.find("", "replied") == []
    with pytest.raises(FilterError):
        await observer.find("nonsense")


def test_a_request_is_a_subject_of_filters() -> None:
    each = seen(3, at_s=2.0)
    each.replied_s = 2.25
    assert parse_filter("type = READ_SEGMENT and segment = a/b/0 and latency = 250ms and time = 2s")(each)
    assert parse_filter("connection = 1 and direction = request and sequence = 3 and not failure")(each)
    assert "secret" not in repr(each)


async def test_what_was_reached_before_counts_and_what_comes_later_ends_the_wait() -> None:
    observer = Observer()
    first, second = seen(1), seen(2)
    for each in (first, second):
        observer.add(each)
    observer.executed(first, 1.0, "SEGMENT_READ", failure=False)
    waiting = asyncio.create_task(observer.wait_for("type = READ_SEGMENT", count=2))
    await asyncio.sleep(0)
    assert not waiting.done()
    observer.executed(second, 2.0, "SEGMENT_READ", failure=False)
    assert await waiting is second
    assert await observer.wait_for(count=1, timeout_s=0) is first


async def test_a_refusal_is_not_an_application() -> None:
    observer = Observer()
    each = seen(1)
    observer.add(each)
    observer.executed(each, 1.0, "NO_SUCH_SEGMENT", failure=True)
    assert await observer.wait_for("failure", stage="refused") is each
    with pytest.raises(NotSeen) as caught:
        await observer.wait_for("type = READ_SEGMENT", timeout_s=0.01)
    assert (caught.value.found, caught.value.count, caught.value.stage) == (0, 1, "applied")
    assert "0 of 1 requests with type = READ_SEGMENT were applied within 0.01 s" in str(caught.value)


async def test_only_what_comes_behind_a_mark_counts() -> None:
    observer = Observer()
    observer.add(seen(1))
    mark = observer.mark()
    with pytest.raises(NotSeen):
        await observer.wait_for(stage="received", since=mark, timeout_s=0.01)
    observer.add(seen(2))
    assert (await observer.wait_for(stage="received", since=mark)).number == 2


async def test_what_cannot_be_waited_for_is_refused_at_once() -> None:
    observer = Observer()
    with pytest.raises(FilterError):
        await observer.wait_for("typ = X")
    with pytest.raises(ValueError, match="type = DATA_APPENDED: no request can match this"):
        observer.requests("type = DATA_APPENDED")
    unusable: tuple[tuple[dict[str, Any], str], ...] = (
        ({"count": True}, "count must be a whole number of at least 1, not True"),
        ({"timeout_s": -1}, "timeout_s must be a finite number of at least 0, not -1"),
        ({"since": observer.mark}, "since is a number, as from mark\\(\\), not <bound method Observed.mark of .*"),
        ({"match": None}, "a filter is a text, not None"),
    )
    for given, said in unusable:
        with pytest.raises(ValueError, match=f"^{said}$"):
            await observer.wait_for(**given)


async def test_the_requests_of_a_store_are_seen_with_their_stages_and_times() -> None:
    clock = FakeClock()
    async with MockSegmentStore(clock=clock) as mock, await Peer.connect(mock) as peer:
        await peer.ask(HELLO, create())
        clock.advance(2)
        await peer.ask(set_up(), append(1), append(2, b"longer"), ReadSegment("scope/none/0", 0, 9, "", 5))
        types = [request.type_name for request in mock.requests()]
        assert types == ["HELLO", "CREATE_SEGMENT", "SETUP_APPEND", *["APPEND_BLOCK_END"] * 2, "READ_SEGMENT"]
        appends = mock.requests("type = APPEND_BLOCK_END", stage="replied")
        assert [(each.segments, each.writer_id, each.event_number) for each in appends] == [
            ((SEGMENT,), WRITER, 1),
            ((SEGMENT,), WRITER, 2),
        ]
        assert [each.size for each in appends] == [76 + 4, 76 + 6]
        assert [each.received_s for each in appends] == [1002.0, 1002.0]
        assert mock.requests("time < 1s", stage="applied")[-1].reply == "SEGMENT_CREATED"
        (failed,) = mock.requests("failure", stage="refused")
        assert (failed.type_name, failed.reply, failed.applied_s) == ("READ_SEGMENT", "NO_SUCH_SEGMENT", None)


async def test_a_read_at_the_tail_is_applied_when_it_is_answered() -> None:
    async with MockSegmentStore() as mock, await Peer.connect(mock) as peer:
        await peer.ask(HELLO, create(), set_up())
        peer.send(read(0))
        waiting = await mock.wait_for("type = READ_SEGMENT", stage="received")
        assert waiting.applied_s is None
        peer.send(append(1))
        applied = await mock.wait_for("type = READ_SEGMENT", stage="replied")
        assert applied is waiting
        assert applied.reply == "SEGMENT_READ"


async def test_an_unwatched_store_raises_an_error_that_explains_it() -> None:
    async with MockSegmentStore(watched=False) as mock:
        with pytest.raises(NotObserved):
            mock.requests()
        with pytest.raises(RuntimeError, match="there are no faults here"):
            _ = mock.faults


async def test_rules_and_the_log_select_appends_by_their_events() -> None:
    async with MockSegmentStore() as mock, await Peer.connect(mock) as peer:
        mock.faults.add("data.order = 17", name="order", do="ok")
        mock.faults.add('data ~ "city"', on="reply", name="read", do="ok")
        await peer.ask(HELLO, create(), set_up())
        for number in (1, 2):
            event = b'{"order": %d, "city": "Oslo"}' % (15 + number)
            await peer.ask(append(number, len(event).to_bytes(8, "big") + event))
        await peer.ask(read(0))
        assert [(decision.rule, decision.event_number, decision.type_name) for decision in mock.faults.decisions] == [
            ("order", 2, "APPEND_BLOCK_END"),
            ("read", -1, "SEGMENT_READ"),
        ]
        assert [request.event_number for request in mock.requests("data ~ '\"order\": 17'")] == [2]
        assert (await mock.wait_for("data.city = Oslo", count=2)).event_number == 2
        assert "Oslo" not in repr(mock.requests())
        mock.faults.observer = None
        await peer.ask(append(3, b'{"order": 17}'))
        assert mock.faults.decisions[-1].event_number == 3, "a rule sees payloads that no log keeps"


def test_rules_see_payloads_that_a_log_leaves_to_the_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.server.faults.observe._LOG_BYTES", 2_000)
    faults = Faults(FakeClock(), observer=Observer(history=cast("History", object())))
    faults.add('data ~ "x"', do="ok")
    lane = Lane(faults, store=0, encode=encode, on_effects=lambda _: None)
    for number in range(1, 6):
        lane.request(Append(SEGMENT, WRITER, number, 1, b"x" * 900, None, 1))
    assert faults.tallies()[0].matched == 5


def test_the_oldest_requests_lose_their_payloads_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.server.faults.observe._LOG_BYTES", 2_000)
    observer = Observer()
    for number in (1, 2):
        item = Append(SEGMENT, WRITER, number, 1, bytes(1_500), None, 1)
        seen = request_seen(item, number, store=0, connection=1, now_s=0, started_s=0, with_payload=True)
        observer.add(seen)
    assert [len(b"".join(request.payloads)) for request in observer.requests()] == [0, 1_500]
    assert observer.forgotten == 0
