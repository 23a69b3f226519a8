"""Filters records by their metadata and frame header, so that rejected frames are never decoded.

A `Condition` compares one column with values; all conditions of a `Chosen` must hold. Semantics are SQL's: a comparison
with a missing value does not hold, negated or not.

Invariant: `Condition.holds` and `Condition.in_numbers` agree; a block is skipped unread only if no record of it can
match. Conditions on columns outside `FILTERED` are left to Spark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from segstore.wire.schema import COMMANDS, Unknown
from segstore.wire.trace import Direction, RecordKind

if TYPE_CHECKING:
    from segstore.pipeline.trace.files import Skipped
    from segstore.wire.trace import BlockHeader

Numbers = tuple[str, bool, bool, tuple[tuple[int, int], ...]]
"""A source, whether it may be missing, whether the ranges are excluded, and the ranges."""
Test = Literal["=", "in", ">", ">=", "<", "<=", "null"]

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_RANGES: Final[dict[str, Callable[[int], tuple[int, int]]]] = {
    "=": lambda value: (value, value),
    "in": lambda value: (value, value),
    ">": lambda value: (value + 1, _INT64[1]),
    ">=": lambda value: (value, _INT64[1]),
    "<": lambda value: (_INT64[0], value - 1),
    "<=": lambda value: (_INT64[0], value),
}
FILTERED: Final = {
    "kind": str,
    "direction": str,
    "command": str,
    "failure": bool,
    "code": int,
    "connection": int,
    "ts_ns": int,
    "size": int,
    "time": datetime,
}
"""The columns that conditions support, with the types of their values."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NAMED: Final = {"kind": RecordKind, "direction": Direction}


class Condition(NamedTuple):
    """One comparison. values: one value, several for "in", none for "null"; times are microseconds since 1970."""

    column: str
    test: Test
    values: tuple[Any, ...] = ()
    negated: bool = False

    def holds(self, value: Any) -> bool:
        """Whether the condition holds for a value; None means no value."""
        if self.test == "null":
            return (value is None) is not self.negated
        if value is None:
            return False
        if self.test == "in":
            return (value in self.values) is not self.negated
        return bool(_COMPARE[self.test](value, self.values[0])) is not self.negated

    def in_numbers(self) -> Numbers:
        """Returns the condition as ranges of numbers: of kinds, directions, type codes, or the column's int64."""
        if self.column in _NAMED:
            here = tuple((member, member) for member in _NAMED[self.column] if self.holds(member.name.lower()))
            return self.column, False, False, here
        if self.column in ("command", "failure"):
            fact = operator.attrgetter("type_name" if self.column == "command" else "is_failure")
            unknown = self.holds(fact(Unknown))
            codes = tuple((code, code) for code, cls in COMMANDS.items() if self.holds(fact(cls)) is not unknown)
            return "code", self.holds(None), unknown, codes
        if self.test == "null":
            return self.column, self.holds(None), self.negated, ()
        ranges = [_RANGES[self.test](value) for value in self.values]
        inside = ((max(least, _INT64[0]), min(most, _INT64[1])) for least, most in ranges)
        return self.column, False, self.negated, tuple(bounds for bounds in inside if bounds[0] <= bounds[1])


def condition(column: str, test: Test, values: tuple[Any, ...] = (), *, negated: bool = False) -> Condition | None:
    """Returns a condition; None if it cannot be decided here."""
    wanted = FILTERED.get(column)
    if wanted is None or any(type(value) is not wanted for value in values):
        return None
    if wanted is datetime:
        if any(value.tzinfo is None for value in values):
            return None
        values = tuple((value - _EPOCH) // _MICROSECOND for value in values)
    return Condition(column, test, values, negated)


class Chosen:
    """Selects the records for which all conditions hold."""

    def __init__(self, conditions: tuple[Condition, ...] = ()) -> None:
        self.conditions = conditions

    def takes(self, values: dict[str, Any]) -> bool:
        """Whether a record with these column values matches (`time` in microseconds)."""
        return all(condition.holds(values.get(condition.column)) for condition in self.conditions)

    def takes_skipped(self, part: Skipped) -> bool:
        """Whether the row of an unreadable part matches."""
        return self.takes({"kind": "skipped", "size": part.size})

    def takes_block(self, header: BlockHeader) -> bool:
        """Whether any record of a block can match."""
        return all(_may_hold(condition, header) for condition in self.conditions)


def _may_hold(each: Condition, header: BlockHeader) -> bool:
    """Whether a condition can hold for any record of a block; compares times with the block's first and last."""
    if each.negated or each.test == "null" or each.column not in ("ts_ns", "time"):
        return True
    first, last = header.first_ts_ns, header.last_ts_ns
    if each.column == "time":
        first, last = first // 1000, last // 1000
    if each.test in ("=", "in"):
        return any(first <= value <= last for value in each.values)
    return bool(_COMPARE[each.test](last if each.test in (">", ">=") else first, each.values[0]))
