"""Forwards acknowledgements of appends to the flows that sent them.

Invariant: an acknowledgement for an unknown or closed flow is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from segstore.wire.request_id import FLOWS_DISABLED

if TYPE_CHECKING:
    from segstore.client.connection.outbox import EventCounters
    from segstore.client.connection.transport import Flow
    from segstore.wire.codec.generate import FrameRows

Ack = tuple[bytes, int, int, int, int]
"""The fields of a DataAppended in wire order: the writer's id as bytes, the event number, the previously acknowledged
event number, the request id, the segment's length."""


def acknowledge(acks: FrameRows, flows: Mapping[int, Flow], counters: EventCounters) -> None:
    """Calls `on_ack` of the flow of each acknowledgement. An exception ends its flow and no other.

    acks: frames of DataAppended, as a decoder returns them; the caller keeps the bytes unchanged until this returns.
    """
    owner = flows.get(FLOWS_DISABLED)
    for ack in acks.fields:
        flow = flows.get(ack[3] >> 32) if owner is None else owner
        if flow is None or flow.closed:
            counters.dropped_replies += 1
            continue
        on_ack = flow.on_ack
        try:
            on_ack(*ack)
        except Exception as error:  # noqa: BLE001 — any failure ends this flow and no other
            flow.fail(error)
