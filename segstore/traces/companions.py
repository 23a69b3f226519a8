"""Records that the replay of chosen records needs: a part of a trace keeps them beside the chosen records.

A connection with a chosen record needs its start, its end and both Hellos. An append needs the set-up of its writer
with the answer, and the end of a block needs its beginning, which may hold the events, as the beginning needs its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from segstore.wire.trace import Exchange

_BLOCK: Final = ("APPEND_BLOCK", "APPEND_BLOCK_END")
_APPENDS: Final = (*_BLOCK, "CONDITIONAL_APPEND", "CONDITIONAL_BLOCK_END")
_SET_UPS: Final = ("SETUP_APPEND", "APPEND_SETUP")


@dataclass(slots=True)
class _Group:
    """Records that are kept together. places: of the records that are not kept so far."""

    places: list[int] = field(default_factory=list)
    kept: bool = False


@dataclass(slots=True)
class _Connection:
    """The groups of a connection. set_ups: the set-up of each writer. blocks: its newest block."""

    bounds: _Group = field(default_factory=_Group)
    set_ups: dict[bytes, _Group] = field(default_factory=dict)
    blocks: dict[bytes, _Group] = field(default_factory=dict)


class Companions:
    """Finds the records that are kept. places: their positions so far, from 0, in the order of `see`."""

    def __init__(self) -> None:
        self.places: set[int] = set()
        self._count = 0
        self._connections: dict[int, _Connection] = {}

    def see(self, seen: Exchange, *, chosen: bool) -> None:
        """Takes the next record of the trace."""
        at, self._count = self._count, self._count + 1
        if seen.kind == "open" or seen.connection not in self._connections:
            self._connections[seen.connection] = _Connection()  # a number that comes again is another connection
        connection, name = self._connections[seen.connection], seen.type_name
        if seen.kind in ("open", "close") or name == "HELLO":
            self._add(connection.bounds, at)
        if chosen:
            self._keep(connection.bounds)
        if (name in _APPENDS or name in _SET_UPS) and seen.command is not None:
            self._of_writer(connection, seen.command, at, chosen=chosen)

    def _of_writer(self, connection: _Connection, command: Any, at: int, *, chosen: bool) -> None:
        name, writer = command.type_name, command.writer_id.bytes
        if name == "SETUP_APPEND":
            connection.set_ups[writer] = _Group()
        if name == "APPEND_BLOCK":
            connection.blocks[writer] = _Group()
        groups = connection.set_ups if name in _SET_UPS else connection.blocks if name in _BLOCK else {}
        if writer in groups:
            self._add(groups[writer], at)
        if chosen and name in _APPENDS:
            for by_writer in (connection.set_ups, groups):
                if writer in by_writer:
                    self._keep(by_writer[writer])

    def _add(self, group: _Group, at: int) -> None:
        if group.kept:
            self.places.add(at)
        else:
            group.places.append(at)

    def _keep(self, group: _Group) -> None:
        self.places.update(group.places)
        group.places, group.kept = [], True
