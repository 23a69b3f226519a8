"""Segment attributes: well-known ids, kinds of update, and the rule that decides an update.

An attribute maps a UUID to an int64. Ids whose first half is -2^63 are *core* attributes, all others *extended*. The
value -2^63 means "no value": on the wire it marks an absent attribute, and it can be stored, as the reference does for
ids that it looked up and did not find.

Invariant: `evaluate` changes nothing; it returns the values to store or raises `BadAttribute`. All updates of a
request are checked against the values before the request.

Follows `Attributes`, `AttributeUpdateType` and `SegmentMetadataUpdateTransaction.preProcessAttributes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from segstore.server.store.errors import BadAttribute, Unmapped

NULL_VALUE: Final = -(1 << 63)
"""No value. AppendSetup also returns it for a writer that has not written."""

_CORE_PREFIX: Final = 1 << 63


def core_id(number: int) -> UUID:
    """The id of core attribute `number`, a non-negative int64."""
    return UUID(int=_CORE_PREFIX << 64 | number)


CREATION_TIME: Final = core_id(0)
EVENT_COUNT: Final = core_id(1)
SCALE_POLICY_TYPE: Final = core_id(2)
SCALE_POLICY_RATE: Final = core_id(3)
ROLLOVER_SIZE: Final = core_id(4)
SEGMENT_TYPE: Final = core_id(9)
ATTRIBUTE_ID_LENGTH: Final = core_id(12)
CREATION_EPOCH: Final = core_id(15)
INDEX_ENTRY_SIZE: Final = core_id(16)
"""On an index segment: the size of its entries. Without it the store writes no entries to that segment."""


_COMMON: Final = (
    CREATION_TIME,
    EVENT_COUNT,
    SCALE_POLICY_TYPE,
    SCALE_POLICY_RATE,
    ROLLOVER_SIZE,
    SEGMENT_TYPE,
    INDEX_ENTRY_SIZE,
)
COMMON_KEYS: Final = {key: key for key in (attribute_id.bytes for attribute_id in _COMMON)}
"""The bytes of the ids that nearly every segment has, one object for all segments. Attributes with these ids are
neither limited nor charged."""


def is_core(attribute_id: UUID) -> bool:
    return attribute_id.int >> 64 == _CORE_PREFIX


def wrap_int64(value: int) -> int:
    """Returns the value wrapped to 64 bits, as in Java's long arithmetic."""
    return (value + _CORE_PREFIX & (1 << 64) - 1) - _CORE_PREFIX


class UpdateType(IntEnum):
    """How an update treats the current value; the numbers are those on the wire."""

    NONE = 0
    REPLACE = 1
    REPLACE_IF_GREATER = 2
    ACCUMULATE = 3
    REPLACE_IF_EQUALS = 4


class AttributeUpdate(NamedTuple):
    """One update. `expected` is used only by REPLACE_IF_EQUALS."""

    attribute_id: UUID
    update_type: UpdateType
    value: int
    expected: int = 0

    @classmethod
    def from_wire(cls, attribute_id: UUID, update_type: int, value: int, expected: int) -> AttributeUpdate:
        """Raises `Unmapped` for an update type that does not exist."""
        try:
            return cls(attribute_id, UpdateType(update_type), value, expected)
        except ValueError as error:
            raise Unmapped(f"attribute update type {update_type} does not exist") from error


class MissingValue(BadAttribute):
    """REPLACE_IF_EQUALS on an attribute that was never looked up: the caller may record it as absent and retry."""


def evaluate(
    segment: str, current: Callable[[UUID], int | None], updates: Iterable[AttributeUpdate]
) -> list[tuple[UUID, int]]:
    """Returns the values after the updates, in order; the last update of an id wins.

    `current` returns an attribute's value or None. Raises `MissingValue` or another `BadAttribute` for the first
    update whose condition fails.
    """
    values: list[tuple[UUID, int]] = []
    for attribute_id, kind, value, expected in updates:
        previous = current(attribute_id)
        if kind is UpdateType.REPLACE_IF_EQUALS:
            if previous is None:
                raise MissingValue(segment, attribute_id=attribute_id, previous=NULL_VALUE)
            refused = previous != expected
        elif kind is UpdateType.REPLACE_IF_GREATER:
            refused = previous is not None and value <= previous
        else:
            refused = kind is UpdateType.NONE and previous is not None
        if refused:
            raise BadAttribute(
                segment, attribute_id=attribute_id, previous=NULL_VALUE if previous is None else previous
            )
        if kind is UpdateType.ACCUMULATE and previous is not None:
            value = wrap_int64(previous + value)
        values.append((attribute_id, value))
    return values
