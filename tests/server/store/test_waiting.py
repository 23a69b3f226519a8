"""Waiting readers: who is woken by what, and that nobody is forgotten or told twice."""

from uuid import UUID

import pytest

from segstore.server.store import Container, NoSuchSegment, SegmentTruncated, WakeReason

W = UUID(int=10)
NULL = -(1 << 63)


@pytest.fixture
def container() -> Container:
    container = Container()
    container.create_segment("s", now_ms=1)
    return container


def append(container: Container, data: bytes, number: int = 1, last: int = NULL) -> None:
    container.append("s", W.bytes, ((number, 1, data, 0),), last, 2)


def test_an_append_wakes_those_whose_byte_has_come_in_order_of_arrival(container: Container) -> None:
    container.wait("s", 0, "first")
    container.wait("s", 4, "beyond")
    container.wait("s", 3, "second")
    append(container, b"four")
    assert container.waiters.take_woken() == [("first", WakeReason.DATA), ("second", WakeReason.DATA)]
    assert container.waiters.take_woken() == []
    assert len(container.waiters) == 1
    append(container, b"!", 2, 1)
    assert container.waiters.take_woken() == [("beyond", WakeReason.DATA)]
    assert not container.segment("s").gate


def test_an_empty_append_wakes_no_reader(container: Container) -> None:
    container.wait("s", 0, "t")
    append(container, b"")
    assert container.waiters.take_woken() == []


def test_a_woken_read_reports_that_it_reached_the_tail(container: Container) -> None:
    append(container, b"0123456789")
    result = container.read("s", 0, 8, woken=True)
    assert (b"".join(result.data), result.at_tail, result.end_of_segment) == (b"01234567", True, False)


def test_deleting_wakes_all(container: Container) -> None:
    container.wait("s", 7, 1)
    container.delete_segment("s")
    assert container.waiters.take_woken() == [(1, WakeReason.DELETED)]
    with pytest.raises(NoSuchSegment):
        container.wait("s", 0, 1)


def test_truncation_wakes_those_below_it(container: Container) -> None:
    append(container, b"0123456789")
    container.wait("s", 4, "below")
    container.wait("s", 10, "tail")
    container.truncate_segment("s", 5)
    assert container.waiters.take_woken() == [("below", WakeReason.TRUNCATED)]
    with pytest.raises(SegmentTruncated):
        container.read("s", 4, 8)


def test_a_merge_wakes_readers_of_the_target_with_data_and_of_the_source_with_its_seal(container: Container) -> None:
    container.create_segment("source", now_ms=1)
    container.append("source", W.bytes, ((1, 1, b"txn", 0),), NULL, 2)
    container.wait("s", 0, "target")
    container.wait("source", 3, "source")
    container.merge("s", "source", now_ms=3)
    assert container.waiters.take_woken() == [("source", WakeReason.SEALED), ("target", WakeReason.DATA)]


def test_a_cancelled_reader_is_not_woken(container: Container) -> None:
    container.wait("s", 0, "gone")
    container.wait("s", 0, "stays")
    assert container.waiters.cancel("gone")
    assert not container.waiters.cancel("gone")
    append(container, b"x")
    assert container.waiters.take_woken() == [("stays", WakeReason.DATA)]


def test_a_reader_that_was_woken_can_still_be_cancelled(container: Container) -> None:
    container.wait("s", 0, "late")
    append(container, b"x")
    assert container.waiters.cancel("late")
    assert container.waiters.take_woken() == []


def test_each_reader_gets_the_reason_for_which_it_was_woken_first(container: Container) -> None:
    container.wait("s", 0, "data")
    container.wait("s", 9, "beyond")
    append(container, b"x")
    container.seal_segment("s", now_ms=3)
    assert container.waiters.take_woken() == [("data", WakeReason.DATA), ("beyond", WakeReason.SEALED)]
