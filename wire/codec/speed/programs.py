"""Compiles the intermediate form into the tables that the extension `segstore._speed` walks.

A node of a table is a tuple: the name of its operation, the index of its attribute in the record (-1 without one), a
number, flags, an object and its inner nodes. `speed.h` documents their meaning for each operation.

Invariant: every node of the intermediate form has its table, or compiling fails; no command is treated apart.
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from segstore.wire.codec.generate import MAX_RUN, FrameRows, uuid_of
from segstore.wire.codec.joining import nodes_of
from segstore.wire.schema import lowering as low

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segstore.wire.codec.joining import Joined
    from segstore.wire.schema import Command, WireStruct

Table = tuple[str, int, int, int, Any, tuple[Any, ...]]

_FIXED: Final = {"b": "int8", "i": "int32", "q": "int64", "?": "flag", "16s": "uuid"}
_NEGATIVE_IS_EMPTY, _OPTIONAL, _NOT_WRITTEN = 1, 2, 4


class Acknowledged(NamedTuple):
    """How rows are acknowledged: by a command of 64-bit numbers and the key of the record.

    key, number, before, total: attributes with the record's key, the row's number, the number of the row acknowledged
    before, and the size of all data up to the row's.
    row: the columns of a row: `number` and "data", and attributes of the command that are copied.
    """

    command: type[Command]
    key: str
    number: str
    before: str
    total: str
    row: tuple[str, ...]


def make_codec(speed: Any, commands: Iterable[type[Command]]) -> Any:
    """Returns the extension's codec of these commands. speed: the extension."""
    shapes = tuple(_shape(speed, cls, low.lower(cls.parts), cls.code) for cls in commands)
    nil = uuid_of(bytes(16))
    return speed.Codec(shapes, uuid.UUID, type(nil), nil.is_safe)


def _shape(speed: Any, record: type[WireStruct], nodes: tuple[low.SchemaNode, ...], code: int = 0) -> Any:
    names = record.__struct_fields__
    return speed.Shape(record, code, names, tuple(_table(speed, node, names) for node in nodes))


def _table(speed: Any, node: low.SchemaNode, names: tuple[str, ...]) -> Table:
    """names: the attributes of the record; () for an inner node without attributes."""

    def table(what: str, number: int = 0, flags: int = 0, it: Any = None, inner: tuple[Table, ...] = ()) -> Table:
        return what, names.index(node.name) if names else -1, number, flags, it, inner

    match node:
        case low.Fixed(format=code):
            return table(_FIXED[code])
        case low.Number(members=members, unknown=unknown):
            return table("number", it=unknown, inner=tuple(("member", -1, int(m), 0, m, ()) for m in members))
        case low.Constant(value=value):
            return "constant", -1, value, 0, None, ()
        case low.Text():
            return table("text")
        case low.Data():
            flags = _NEGATIVE_IS_EMPTY * node.negative_is_empty | _OPTIONAL * node.optional
            return table("data", flags=flags | _NOT_WRITTEN * (not node.written))
        case low.Remainder():
            return table("remainder")
        case low.ZeroRun():
            return table("zero_run")
        case low.Sized(trailer_name=trailer, trailer_format=code, missing=missing):
            inner = (_table(speed, low.Fixed(trailer, code), names),) if code else ()
            return table("sized", it=missing, inner=inner)
        case low.TailNode(inner=inside, needs=needs, default=default):
            return table("tail", needs, it=default, inner=(_table(speed, inside, ()),))
        case low.Structure(record=record, nodes=nodes):
            return table("structure", it=_shape(speed, record, nodes))
        case low.Many(element=element, smallest=smallest, negative_is_empty=lenient):
            return table("many", smallest, _NEGATIVE_IS_EMPTY * lenient, inner=(_table(speed, element, ()),))
        case low.Table(columns=columns, smallest=smallest):
            return "table", -1, smallest, 0, None, tuple(_table(speed, column, names) for column in columns)
        case _:
            raise TypeError(f"no table for {type(node).__name__}")


def low_bytes(codes: Iterable[int]) -> bytes:
    """Returns the lowest byte of each type code."""
    return bytes(code & 0xFF for code in codes)


def _positions(cls: type[Command]) -> tuple[dict[str, int], int]:
    """Returns the positions of the fields and of the frame's end, header included, if data is empty."""
    positions, at = {}, 8
    for node in nodes_of(cls):
        positions[node.name] = at
        if isinstance(node, low.Fixed):
            at += struct.calcsize(">" + node.format)
        elif isinstance(node, low.Data):
            at += 4
        elif not isinstance(node, low.Remainder):
            raise TypeError(f"{cls.type_name}.{node.name} has no fixed width")
    return positions, at


def join_of(joined: Joined) -> tuple[Any, ...]:
    """The argument of the extension's `Frames` that joins whole appends to runs."""
    in_block, head = _positions(joined.block)
    in_end, size = _positions(joined.end)
    formats = {node.name: _FIXED[node.format] for node in nodes_of(joined.end) if isinstance(node, low.Fixed)}
    own = next(node.name for node in nodes_of(joined.end) if isinstance(node, low.Data))
    return (
        joined.record,
        joined.number,
        joined.block.code,
        joined.end.code,
        head,
        size,
        in_block[joined.key],
        in_end[joined.key],
        in_end[joined.sized],
        in_end[own],
        in_end[joined.number],
        in_end[joined.events],
        tuple((formats.get(name, "data"), in_end[name]) for name in joined.row),
        low_bytes(cls.code for cls in joined.changes),
    )


def acks_of(acks: Acknowledged) -> tuple[Any, ...]:
    """The arguments of the extension's `Acks`: see `segstore.wire.blocks.acknowledgements`."""
    at, size = _positions(acks.command)
    numbers = {node.name for node in nodes_of(acks.command) if isinstance(node, low.Fixed) and node.format == "q"}
    copied = at.keys() - {acks.key, acks.number, acks.before, acks.total}
    if not numbers.issuperset(at.keys() - {acks.key}):
        raise TypeError(f"{acks.command.type_name} has other fields than 64-bit numbers and a key")
    return (
        acks.command.code,
        size,
        *(at[name] for name in (acks.key, acks.number, acks.before, acks.total)),
        acks.row.index(acks.number),
        acks.row.index("data"),
        tuple((at[name], acks.row.index(name)) for name in copied),
    )


def run_of(cls: type[Command]) -> tuple[Any, ...]:
    """The argument of the extension's `Frames` for consecutive frames of one command."""
    _, size = _positions(cls)
    formats = "".join(node.format for node in nodes_of(cls) if isinstance(node, low.Fixed))
    unpack = struct.Struct(">8x" + formats).iter_unpack
    return (lambda frames: FrameRows(frames, unpack)), struct.pack(">ii", cls.code, size - 8), size, MAX_RUN


def step_of(cls: type[Command], column: int, how: str, what: Any) -> tuple[Any, ...]:
    """A step of rows.c. what: a constant, or the path of an attribute, such as "event.data"."""
    if how == "constant":
        return column, how, -1, -1, what
    name, _, inner = what.partition(".")
    records = {node.name: node.record for node in low.lower(cls.parts) if isinstance(node, low.Structure)}
    within = records[name].__struct_fields__.index(inner) if inner else -1
    return column, how, cls.__struct_fields__.index(name), within, None
