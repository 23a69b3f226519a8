"""Request ids: `flow << 32 | sequence`. Both halves are signed 32-bit integers, the whole a signed 64-bit integer.

A flow is one user of a shared connection; its number identifies its replies. Flow 0 is a connection without flows.
Allocated numbers are between 1 and 2^31 - 1 and unused at that moment; sequences start at 0. Ids and pairs map
uniquely, so ids of other peers split too (KeepAlive's -1 is flow -1, sequence -1).

All functions are pure; the owner of a pool keeps the last number and the set of numbers in use. Values out of range
raise `ValueError`.

Follows `Flow` of Pravega's client. Deliberate difference: Java masks the sequence to 28 bits, so its ids repeat after
2^28 requests; here all 31 bits are used.
"""

from collections.abc import Collection
from typing import Final

FLOWS_DISABLED: Final = 0
MAX_FLOW: Final = 2**31 - 1
MAX_SEQUENCE: Final = 2**31 - 1

_MIN_INT32: Final = -(2**31)


def pack(flow: int, sequence: int) -> int:
    """Returns the request id of a flow and a sequence. Raises `ValueError` unless both fit a signed int32."""
    if not _MIN_INT32 <= flow <= MAX_FLOW:
        raise ValueError(f"flow must fit 32 bits, not {flow}")
    if not _MIN_INT32 <= sequence <= MAX_SEQUENCE:
        raise ValueError(f"sequence must fit 32 bits, not {sequence}")
    return flow << 32 | sequence & 0xFFFFFFFF


def flow_of(request_id: int) -> int:
    """Returns the flow of a request id, for dispatching replies; -1 for a missing id, 0 for Hello's.

    The argument comes from a decoded command, so it is not checked again.
    """
    return request_id >> 32


def sequence_of(request_id: int) -> int:
    """Returns the sequence of a request id, as a signed int32."""
    return ((request_id & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def next_flow(last: int, in_use: Collection[int]) -> int:
    """Returns the next unused flow number after `last` (initially 0), wrapping from MAX_FLOW to 1.

    Raises `ValueError` if `last` is not between 0 and MAX_FLOW, or if every number is in use.
    """
    if not 0 <= last <= MAX_FLOW:
        raise ValueError(f"the last flow must be between 0 and {MAX_FLOW}, not {last}")
    # Among len + 1 different candidates, at least one is free.
    for step in range(min(len(in_use) + 1, MAX_FLOW)):
        candidate = (last + step) % MAX_FLOW + 1
        if candidate not in in_use:
            return candidate
    raise ValueError(f"all {MAX_FLOW} flow numbers are in use")


def next_sequence(sequence: int) -> int:
    """Returns the next sequence, wrapping from MAX_SEQUENCE to 0. Raises `ValueError` for one out of range."""
    if not 0 <= sequence <= MAX_SEQUENCE:
        raise ValueError(f"sequence must be between 0 and {MAX_SEQUENCE}, not {sequence}")
    return 0 if sequence == MAX_SEQUENCE else sequence + 1
