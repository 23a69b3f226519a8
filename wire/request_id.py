"""Request ids: `flow << 32 | sequence`. Both halves are signed 32-bit integers, the whole a signed 64-bit integer.

A flow is one user of a shared connection; its number identifies its replies. Flow 0 is a connection without flows.
Allocated numbers are between 1 and 2^31 - 1 and unused at that moment; sequences start at 0. Ids and pairs map
uniquely, so ids of other peers split too (KeepAlive's -1 is flow -1, sequence -1).

All functions are pure; the owner of a pool keeps the last number and the set of numbers in use.

Follows `Flow` of Pravega's client. Deliberate difference: Java masks the sequence to 28 bits, so its ids repeat after
2^28 requests; here all 31 bits are used.
"""

from collections.abc import Collection
from typing import Final

FLOWS_DISABLED: Final = 0
MAX_FLOW: Final = 2**31 - 1
MAX_SEQUENCE: Final = 2**31 - 1


def pack(flow: int, sequence: int) -> int:
    """Returns the request id of a flow and a sequence, both signed int32s."""
    return flow << 32 | sequence & 0xFFFFFFFF


def flow_of(request_id: int) -> int:
    """Returns the flow of a request id, for dispatching replies; -1 for a missing id, 0 for Hello's."""
    return request_id >> 32


def sequence_of(request_id: int) -> int:
    """Returns the sequence of a request id, as a signed int32."""
    return ((request_id & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def next_flow(last: int, in_use: Collection[int]) -> int:
    """Returns the next unused flow number after `last` (initially 0), wrapping from MAX_FLOW to 1."""
    flow = last % MAX_FLOW + 1
    while flow in in_use:
        flow = flow % MAX_FLOW + 1
    return flow


def next_sequence(sequence: int) -> int:
    """Returns the next sequence, wrapping from MAX_SEQUENCE to 0."""
    return 0 if sequence == MAX_SEQUENCE else sequence + 1
