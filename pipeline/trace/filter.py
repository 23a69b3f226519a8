"""Filters records by their metadata and frame header, so that rejected frames are never decoded.

A `Condition` compares one column with values; all conditions of a `Chosen` must hold. Semantics are SQL's: a comparison
with a missing value does not hold, negated or not.

Invariant: `Chosen.takes` on a record and `Chosen.mask` on columns agree; a block is skipped unread only if none of its
records can match. Conditions on columns outside `FILTERED` are left to Spark.
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

Test = Literal["=", "in", ">", ">=", "<", "<=", "null"]

_COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
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
        return all(each.holds(values.get(each.column)) for each in self.conditions)

    def takes_skipped(self, found: Skipped) -> bool:
        """Whether the row of an unreadable part matches."""
        return self.takes({"kind": "skipped", "size": found.size})

    def takes_block(self, header: BlockHeader) -> bool:
        """Whether any record of a block can match."""
        return all(_may_hold(each, header) for each in self.conditions)

    def mask(self, records: Any, code: Any, there: Any) -> Any:
        """Returns flags of the matching rows, None for all. The arrays are those of
        `segstore.pipeline.trace.vectorised_rows`."""
        out = None
        for each in self.conditions:
            found = _mask(each, records, code, there)
            out = found if out is None else out & found
        return out


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


def _mask(each: Condition, records: Any, code: Any, there: Any) -> Any:
    import numpy as np

    if each.column in _NAMED:
        table = np.array([each.holds(member.name.lower()) for member in _NAMED[each.column]])
        return table[getattr(records, each.column)]
    if each.column in ("command", "failure"):
        return _by_code(each, code, there)
    values, known = {
        "code": (code, there),
        "connection": (records.connection, None),
        "ts_ns": (records.ts_ns, None),
        "size": (records.end - records.start, None),
        "time": (records.ts_ns // 1000, None),
    }[each.column]
    if each.test == "null":
        found = np.zeros(len(values), np.bool_) if known is None else ~known
        return ~found if each.negated else found
    if each.test == "in":
        found = np.isin(values, [value for value in each.values if -(1 << 63) <= value < 1 << 63])
    else:
        found = _COMPARE[each.test](values, each.values[0])
    found = ~found if each.negated else found
    return found if known is None else found & known


def _by_code(each: Condition, code: Any, there: Any) -> Any:
    import numpy as np

    said = operator.attrgetter("type_name" if each.column == "command" else "is_failure")
    out: Any = np.full(len(code), each.holds(None))
    known: Any = np.zeros(len(code), np.bool_)
    for value, cls in COMMANDS.items():
        here = there & (code == value)
        out[here] = each.holds(said(cls))
        known |= here
    out[there & ~known] = each.holds(said(Unknown))
    return out
