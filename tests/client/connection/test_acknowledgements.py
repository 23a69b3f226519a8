"""Acknowledgements reach the flows that they are for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from segstore.client.connection import Flow
from segstore.client.connection.outbox import EventCounters
from segstore.client.connection.transport import Ack, acknowledge
from segstore.wire import DataAppended, encode
from segstore.wire.codec.generate import FrameRows
from segstore.wire.request_id import FLOWS_DISABLED, pack
from tests.wire.rows import rows_of

WRITER = bytes(16)


class FakeFlow:
    """A flow that notes its acknowledgements, and raises at the number 13."""

    closed = False

    def __init__(self) -> None:
        self.acks: list[Ack] = []
        self.failures: list[Exception] = []

    def on_ack(self, *ack: Any) -> None:
        self.acks.append(ack)
        if ack[1] == 13:
            raise ZeroDivisionError

    def fail(self, cause: Exception) -> None:
        self.failures.append(cause)
        self.closed = True


def ack(flow: int, number: int) -> Ack:
    return WRITER, number, number - 1, pack(flow, 5), 10 * number


def rows(*acks: Ack) -> FrameRows:
    return rows_of(
        encode(DataAppended(id_, UUID(bytes=writer), now, before, at)) for writer, now, before, id_, at in acks
    )


def flows_of(*numbers: int) -> tuple[dict[int, FakeFlow], dict[int, Flow]]:
    fakes = {number: FakeFlow() for number in numbers}
    flows: Any = fakes
    return fakes, flows


def test_each_flow_gets_its_own_in_order_and_those_for_nobody_are_counted() -> None:
    fakes, flows = flows_of(1, 2)
    counters = EventCounters()
    acknowledge(rows(ack(1, 1), ack(2, 1), ack(3, 1), ack(1, 2)), flows, counters)
    assert [fake.acks for fake in fakes.values()] == [[ack(1, 1), ack(1, 2)], [ack(2, 1)]]
    assert counters.dropped_replies == 1


def test_a_flow_that_fails_ends_alone_and_gets_no_more() -> None:
    fakes, flows = flows_of(1, 2)
    counters = EventCounters()
    acknowledge(rows(ack(1, 13), ack(1, 14), ack(2, 1)), flows, counters)
    assert [type(failure) for failure in fakes[1].failures] == [ZeroDivisionError]
    assert (fakes[1].acks, fakes[2].acks) == ([ack(1, 13)], [ack(2, 1)])
    assert counters.dropped_replies == 1


def test_the_user_of_a_connection_without_flows_gets_all() -> None:
    fakes, flows = flows_of(FLOWS_DISABLED)
    acknowledge(rows(ack(7, 1), ack(FLOWS_DISABLED, 2)), flows, EventCounters())
    assert fakes[FLOWS_DISABLED].acks == [ack(7, 1), ack(FLOWS_DISABLED, 2)]
