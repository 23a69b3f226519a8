"""Selects records by their metadata and type code, so that rejected frames are never decoded.

Invariant: `Chosen.takes` and `Chosen.in_numbers` agree; a block is skipped unread only if no record of it can match.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.wire.schema import COMMANDS, Unknown
from segstore.wire.trace import Record

if TYPE_CHECKING:
    from segstore.wire.trace import BlockHeader

Numbers = tuple[str, bool, bool, tuple[tuple[int, int], ...]]
"""A source, whether it may be missing, whether the ranges are excluded, and the ranges."""
_LEAST: Final = -(1 << 63)
_MOST: Final = 1 << 63


class Chosen(NamedTuple):
    """The selected records: all by default. Records without a command or connection match no set of these.

    from_ns, until_ns: bounds of `ts_ns`; the last one is exclusive.
    """

    commands: frozenset[str] | None = None
    connections: frozenset[int] | None = None
    from_ns: int = _LEAST
    until_ns: int = _MOST

    @property
    def takes_all(self) -> bool:
        """Whether all records match; otherwise rows of unreadable parts do not."""
        return self == Chosen()

    def takes(self, record: Record) -> bool:
        """Whether a record matches."""
        if not self.from_ns <= record.ts_ns < self.until_ns:
            return False
        if self.connections is not None and record.connection not in self.connections:
            return False
        return self.commands is None or (
            (code := record.code) is not None and COMMANDS.get(code, Unknown).type_name in self.commands
        )

    def takes_block(self, header: BlockHeader) -> bool:
        """Whether any record of a block can match."""
        return self.from_ns <= header.last_ts_ns and header.first_ts_ns < self.until_ns

    def in_numbers(self) -> tuple[Numbers, ...]:
        """Returns the conditions as ranges of type codes, connections and times."""
        conditions: list[Numbers] = []
        if self.commands is not None:
            unknown = Unknown.type_name in self.commands
            codes = (code for code, cls in COMMANDS.items() if (cls.type_name in self.commands) is not unknown)
            conditions.append(("code", False, unknown, tuple((code, code) for code in codes)))
        if self.connections is not None:
            conditions.append(("connection", False, False, tuple((number, number) for number in self.connections)))
        if (self.from_ns, self.until_ns) != (_LEAST, _MOST):
            times = ((self.from_ns, self.until_ns - 1),) if self.from_ns < self.until_ns else ()
            conditions.append(("ts_ns", False, False, times))
        return tuple(conditions)
