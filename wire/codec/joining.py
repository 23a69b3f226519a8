"""Whole appends as rows: a block and its end, decoded together.

Nearly all appends travel like that. Consecutive frames of a buffer become runs, without commands; a run has the rows of
one record. The extension does the same from the same `Joined`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.wire.schema import FieldType, types

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from segstore.wire.schema import Command


class Joined(NamedTuple):
    """A block and its end that are one row of a record: the end has the `key` of the block, `sized` is the size of the
    block's data, and the end has no data of its own.

    record: class of the records, which are looked up by the 16 bytes of `key`.
    number: attribute of the end, at least the record's `number`, which is set to it.
    events: attribute of the end that is above 0.
    row: the attributes of block and end that a row has.
    changes: the commands that may change records or their contents.
    """

    block: type[Command]
    end: type[Command]
    record: type
    key: str
    sized: str
    number: str
    events: str
    row: tuple[str, ...]
    changes: Collection[type[Command]]


class Joining(NamedTuple):
    """How whole appends are joined: the code of their blocks, the codes of the commands before which a run ends, and
    `take(view, start, end, limit, records, out, most)`. It adds the whole appends from `start` on to `out`, as one list
    of runs, and returns where they end and how many they are, at most `most`. limit: of the body of a frame. The rows'
    data are views.
    """

    block: int
    changes: frozenset[int]
    take: Callable[..., tuple[int, int]]


def nodes_of(cls: type[Command]) -> tuple[FieldType, ...]:
    """Returns the nodes of a command as current peers send it, with all fixed-width tails."""
    return tuple(n.inner if isinstance(n, types.Tail) and isinstance(n.inner, types.Fixed) else n for n in cls.parts)


def _layout(cls: type[Command]) -> tuple[Struct, list[str], str]:
    """Returns the layout of a frame without data, header included, the names of its fields, and that of its data."""
    nodes = nodes_of(cls)
    formats = [n.format if isinstance(n, types.Fixed) else "i" if isinstance(n, types.Blob) else "" for n in nodes]
    data = next(n.name for n in nodes if not isinstance(n, types.Fixed))
    return Struct(">ii" + "".join(formats)), ["", "", *(n.name for n in nodes)], data


def joining_of(joined: Joined) -> Joining:
    """Compiles the layout of whole appends."""
    block, in_block, _ = _layout(joined.block)
    ending, in_end, own = _layout(joined.end)
    read_block, read_end, head, end_bytes = block.unpack_from, ending.unpack_from, block.size, ending.size
    code, end_code, body, name = joined.block.code, joined.end.code, end_bytes - 8, joined.number
    alike = itemgetter(0, 1, *map(in_end.index, (joined.key, joined.sized, own)))
    counted = itemgetter(*map(in_end.index, (joined.number, joined.events)))
    row_of = itemgetter(*(len(in_end) if column == own else in_end.index(column) for column in joined.row))
    assert in_block[2] == joined.key

    def take(
        view: memoryview, start: int, end: int, limit: int, records: Mapping[bytes, Any], out: list[Any], most: int
    ) -> tuple[int, int]:
        runs: list[Any] = []
        rows: list[Any] = []
        record, last_key, taken = None, b"", 0
        while taken < most and end - start >= head:
            kind, length, key = read_block(view, start)
            stop = start + 8 + length
            if kind != code or not head - 8 <= length <= limit or stop + end_bytes > end or body > limit:
                break
            fields = read_end(view, stop)
            number, events = counted(fields)
            if alike(fields) != (end_code, body, key, stop - start - head, 0) or events <= 0:
                break
            if key != last_key:
                record = records.get(key)
                if record is None or number < getattr(record, name):
                    break
                rows, last_key = [], key
                runs.append((record, rows))
            elif number < getattr(record, name):
                break
            rows.append(row_of((*fields, view[start + head : stop])))
            setattr(record, name, number)
            start, taken = stop + end_bytes, taken + 1
        if runs:
            out.append(runs)
        return start, taken

    return Joining(code, frozenset(cls.code for cls in joined.changes), take)
