"""The requests nearest to a filter that none matched, and types that no request has."""

from uuid import UUID

import pytest

from segstore.server.faults import Faults, Observer, Seen
from segstore.server.faults.near import line_of, near_misses
from segstore.server.faults.observe import NotSeen, request_seen
from segstore.wire import Hello, ReadSegment
from segstore.wire.blocks import Append
from segstore.wire.trace import parse_filter
from tests.looped import looped
from tests.server.support import FakeClock


def read(number: int, segment: str = "shop/orders/0", connection: int = 1, store: int = 0) -> Seen:
    command = ReadSegment(segment, number, 10, "secret", number)
    return request_seen(command, number, store=store, connection=connection, now_s=0, started_s=0)


def appended(number: int, count: int = 1) -> Seen:
    item = Append("shop/orders/0", UUID(int=7), number, count, b"", None, 1)
    return request_seen(item, number, store=0, connection=1, now_s=0, started_s=0)


def test_a_request_is_a_line_with_its_position_and_what_became_of_it() -> None:
    seen = read(3, store=1)
    assert line_of(seen) == "request 3: READ_SEGMENT of shop/orders/0 offset 3 on connection 1 of store 1: no reply"
    seen.reply, seen.replied_s, seen.faults = "NO_SUCH_SEGMENT", 0.0125, ("gone: error NO_SUCH_SEGMENT",)
    assert line_of(seen).endswith(": NO_SUCH_SEGMENT after 12.5 ms; gone: error NO_SUCH_SEGMENT")
    assert "events 3 to 5 on connection 1" in line_of(appended(5, 3))
    assert line_of(read(1, "x\n" + "y" * 600)).isprintable()


def test_the_requests_of_which_fewest_parts_fail_come_first_and_then_the_latest() -> None:
    match = parse_filter('type = READ_SEGMENT and segment ~ "shop/*" and connection = 9')
    seen = [read(4, "other/a/0"), read(3), appended(2), read(1), read(0, connection=9)]
    assert [line.split(": ", 1)[1].split(":")[0] + line[line.rindex(":") :] for line in near_misses(seen, match)] == [
        "request 3: not connection = 9",
        "request 1: not connection = 9",
        "request 4: not segment ~ \"shop/*\", not connection = 9",
    ]  # fmt: skip


@looped("match", ["stream = order", "segment ~ 'shop/order/*'", "segment = shop/orders", "scope ~ shap"])
def test_the_most_similar_names_are_near_to_a_filter_of_one_part(match: str) -> None:
    seen = [read(5, "logs/lines/0"), read(4), read(3), read(2, "logs/bills/0"), read(1, "_system/x/0"), appended(0)]
    near = list(near_misses(seen, parse_filter(match)))
    assert near[0] == f"near: request 4: READ_SEGMENT of shop/orders/0 offset 4 on connection 1: no reply: not {match}"
    assert [" of shop/" in line for line in near] == [True, False, False], "one request for each name"
    assert list(near_misses(seen, parse_filter("type = HELLO"))) == [], "it is a known word"


@looped("match", ["", "type = READ_SEGMENT"])
async def test_a_wait_that_found_nothing_names_requests_that_match_and_have_not_come_so_far(match: str) -> None:
    observer = Observer()
    seen = read(7)
    observer.add(seen)
    observer.executed(seen, 0.0, "NO_SUCH_SEGMENT", failure=True)
    with pytest.raises(NotSeen) as caught:
        await observer.wait_for(match, timeout_s=0)
    place = "request 7: READ_SEGMENT of shop/orders/0 offset 7 on connection 1"
    assert caught.value.near == (f"near: {place}: NO_SUCH_SEGMENT, not sent: not applied",)
    assert str(caught.value).splitlines()[1] == f"  {caught.value.near[0]}"
    with pytest.raises(NotSeen, match="not received since request 7"):
        await observer.wait_for(match, stage="received", since=7, timeout_s=0)


def test_a_rule_that_matched_nothing_is_named_with_its_conditions_and_the_nearest_requests() -> None:
    faults = Faults(FakeClock(), observer=Observer())
    faults.add("type = HELLO and connection = 2", do="close", name="never", nth=3)
    faults.add("type = HELLO", do="close", nth=2, name="once")
    faults.add("type = HELLO", do="close", store=1, name="elsewhere")
    seen = request_seen(Hello(17, 5), 1, store=0, connection=1, now_s=0, started_s=0)
    faults.observer.add(seen)
    assert faults.decide(seen) is None
    never, elsewhere, once = (each.splitlines() for each in faults.unmatched())
    assert never == [
        "fault 'never' has matched nothing: name 'never', match 'type = HELLO and connection = 2', nth (3,)",
        "  near: request 1: HELLO on connection 1: no reply: not connection = 2",
    ]
    assert elsewhere[1:] == ["  near: request 1: HELLO on connection 1: no reply: not store = 1"]
    assert once == ["fault 'once' has matched, but never fired: name 'once', match 'type = HELLO', nth (2,)"]
