"""The extension, as the codec uses it: C first, and Python for what C leaves; and the tables that C walks.

Invariant: each function here returns the result of the Python function that it is given, or raises its error; C answers
only where both would agree. A call of C returns a value, or None if Python has to answer.

A node of a table is a tuple: the name of its operation, the index of its attribute in the record (-1 without one), a
number, flags, an object and its inner nodes. `speed.h` documents their meaning for each operation. Every field
type has its table, or compiling fails; no command is treated apart.

An extension that does not load, that was built for another version of segstore, or from other sources, as far as its
types tell, is refused with a warning.
"""

from __future__ import annotations

import functools
import struct
import sys
import uuid
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from segstore import __version__
from segstore.wire.codec.generate import MAX_RUN, FrameRows, uuid_of
from segstore.wire.codec.joining import nodes_of
from segstore.wire.schema import FieldType, Nested, Rows, types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from segstore.wire.codec.joining import Joined
    from segstore.wire.schema import Command, WireStruct

F = TypeVar("F", bound="Callable[..., Any]")

NAME: Final = "segstore._speed"
TYPES: Final = {"Acks", "Codec", "Frames", "Rows", "Shape", "Shortcut"}


class Accelerator:
    """The extension with the tables of all commands."""

    def __init__(self, speed: Any, commands: Iterable[type[Command]]) -> None:
        self._speed = speed
        self._codec = make_codec(speed, commands)

    def frames(
        self, light: Iterable[int], *, joined: Joined | None, in_rows: type[Command] | None, most_elements: int | None
    ) -> Callable[..., tuple[int, int]]:
        """As `segstore.wire.codec.framing.frames_of`; light: codes of commands whose decoding takes no time."""
        most = sys.maxsize if most_elements is None else most_elements
        join, run = () if joined is None else join_of(joined), () if in_rows is None else run_of(in_rows)
        loop: Callable[..., tuple[int, int]] = self._speed.Frames(self._codec, low_bytes(light), most, join, run)
        return loop

    def acknowledger(self, acks: Acknowledged) -> Callable[..., int]:
        """As `acknowledger` of `segstore.wire.blocks.decoder`, for rows as they are here."""
        acknowledge: Callable[..., int] = self._speed.Acks(*acks_of(acks))
        return acknowledge

    def rows(
        self,
        columns: tuple[tuple[Any, ...], ...],
        programs: Mapping[type[Command], tuple[tuple[int, str, Any], ...]],
        conditions: tuple[tuple[Any, ...], ...],
        *,
        kinds: bytes,
        decodes: bool,
    ) -> Any:
        """An object whose `fill` makes columns of records: see `segstore.pipeline.trace.batches`.

        columns: type, source and labels. programs: class → steps: the column, how it is filled, and the path of an
        attribute or a constant; frames of other commands are left to Python. conditions: as (source, whether it may be
        missing, whether the ranges are excluded, ranges); a record must meet all. kinds: for each kind of records 0 for
        no frame, 1 for a frame, 2 for a record that is left to Python. decodes: whether frames are read.
        """
        coded = tuple((cls.code, tuple(step_of(cls, *step) for step in steps)) for cls, steps in programs.items())
        return self._speed.Rows(self._codec, columns, coded, conditions, kinds, decodes)

    def shortcut(self, behind: F) -> F:
        """The function `behind` with its equal in C, which has the same name, in front.

        C is asked if it is called with all arguments by position, and no more but `unknown` of `decode`.
        """
        shortcut: Any = self._speed.Shortcut(self._codec, behind.__name__, behind)
        functools.update_wrapper(shortcut, behind)
        return cast("F", shortcut)


def load(commands: Iterable[type[Command]]) -> Accelerator | None:
    """Returns the accelerator for these commands, or None; warns if an extension was built but is not used."""
    try:
        from segstore import _speed
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError) and "cannot import name '_speed'" not in str(error):
            _refuse(f"does not load ({error})")
        return None
    if __version__ != _speed.VERSION:
        _refuse(f"was built for segstore {_speed.VERSION}, and this is {__version__}")
        return None
    if missing := TYPES - vars(_speed).keys():
        _refuse(f"was built from other sources: it lacks {', '.join(sorted(missing))}")
        return None
    try:
        return Accelerator(_speed, commands)
    except (TypeError, ValueError, AttributeError) as error:
        _refuse(f"does not know these tables ({error})")
        return None


def _refuse(why: str) -> None:
    text = f"the extension {NAME} {why}; the codec in Python is used: install segstore again to build it"
    warnings.warn(text, RuntimeWarning, stacklevel=3)


# --- tables -----------------------------------------------------------------------------------------------------------

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
    shapes = tuple(_shape(speed, cls, cls.parts, cls.code) for cls in commands)
    nil = uuid_of(bytes(16))
    return speed.Codec(shapes, uuid.UUID, type(nil), nil.is_safe)


def _shape(speed: Any, record: type[WireStruct], nodes: tuple[FieldType, ...], code: int = 0) -> Any:
    names = record.__struct_fields__
    return speed.Shape(record, code, names, tuple(_table(speed, node, names) for node in nodes))


def _table(speed: Any, node: FieldType, names: tuple[str, ...]) -> Table:
    """names: the attributes of the record; () for an inner node without attributes."""

    def table(what: str, number: int = 0, flags: int = 0, it: Any = None, inner: tuple[Table, ...] = ()) -> Table:
        return what, names.index(node.name) if names else -1, number, flags, it, inner

    match node:
        case types.Fixed(format=code):
            return table(_FIXED[code])
        case types.EnumCode(members=members, unknown=unknown):
            return table("number", it=unknown, inner=tuple(("member", -1, int(m), 0, m, ()) for m in members))
        case types.Marker(value=value):
            return "constant", -1, value, 0, None, ()
        case types.Text():
            return table("text")
        case types.Blob():
            flags = _NEGATIVE_IS_EMPTY * node.negative_is_empty | _OPTIONAL * node.optional
            return table("data", flags=flags | _NOT_WRITTEN * (not node.written))
        case types.Rest():
            return table("remainder")
        case types.Zeros():
            return table("zero_run")
        case types.SizedData(trailer=trailer, missing=missing):
            inner = () if trailer is None else (_table(speed, trailer, names),)
            return table("sized", it=missing, inner=inner)
        case types.Tail(inner=inside, needs=needs, default=default):
            return table("tail", needs, it=default, inner=(_table(speed, inside, ()),))
        case Nested(record=record, parts=parts):
            return table("structure", it=_shape(speed, record, parts))
        case types.Counted(element=element, smallest=smallest, negative_is_empty=lenient):
            return table("many", smallest, _NEGATIVE_IS_EMPTY * lenient, inner=(_table(speed, element, ()),))
        case Rows(columns=columns, smallest=smallest):
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
        if isinstance(node, types.Fixed):
            at += node.size
        elif isinstance(node, types.Blob):
            at += 4
        elif not isinstance(node, types.Rest):
            raise TypeError(f"{cls.type_name}.{node.name} has no fixed width")
    return positions, at


def join_of(joined: Joined) -> tuple[Any, ...]:
    """The argument of the extension's `Frames` that joins whole appends to runs."""
    in_block, head = _positions(joined.block)
    in_end, size = _positions(joined.end)
    formats = {node.name: _FIXED[node.format] for node in nodes_of(joined.end) if isinstance(node, types.Fixed)}
    own = next(node.name for node in nodes_of(joined.end) if isinstance(node, types.Blob))
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
    """The arguments of the extension's `Acks`: see `segstore.wire.blocks.acknowledger`."""
    at, size = _positions(acks.command)
    numbers = {node.name for node in nodes_of(acks.command) if isinstance(node, types.Fixed) and node.format == "q"}
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
    formats = "".join(node.format for node in nodes_of(cls) if isinstance(node, types.Fixed))
    unpack = struct.Struct(">8x" + formats).iter_unpack
    return (lambda frames: FrameRows(frames, unpack)), struct.pack(">ii", cls.code, size - 8), size, MAX_RUN


def step_of(cls: type[Command], column: int, how: str, what: Any) -> tuple[Any, ...]:
    """A step of rows.c. what: a constant, or the path of an attribute, such as "event.data"."""
    if how == "constant":
        return column, how, -1, -1, what
    name, _, inner = what.partition(".")
    records = {node.name: node.record for node in cls.parts if isinstance(node, Nested)}
    within = records[name].__struct_fields__.index(inner) if inner else -1
    return column, how, cls.__struct_fields__.index(name), within, None
