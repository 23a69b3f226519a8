"""Decodes the same field of many frames at once with NumPy, driven by the codec's intermediate form.

A body is a sequence of nodes (`segstore.wire.schema.lowering`). If all nodes of a command are supported here, a field
of all its frames is located by arithmetic on position arrays and read through an overlapping view of the whole block:
element *n* of the view is the number that starts at byte *n*. The contents of variable-length fields are never touched.

Invariant: a frame marked good has exactly the codec's values, and a frame that the codec refuses is never marked good;
other frames are left to the codec. Lengths are unsigned or checked, so positions only grow, and one comparison with the
frame's end detects overruns, as in the codec's generated decoders. Commands with lists (table entries, batches) are not
supported: `plan_of` returns None.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from segstore.wire.schema import Command, decode_mutf8
from segstore.wire.schema import lowering as low

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_DTYPES: Final = {"b": ">i1", "i": ">i4", "q": ">i8", "?": "u1", "H": ">u2"}
_ID: Final = "16s"


class View:
    """The bytes of a block, for reads at arbitrary positions."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._views: dict[str, npt.NDArray[Any]] = {}

    def items(self, dtype: str, at: Positions) -> npt.NDArray[Any]:
        """Returns the value of this type at each position; arbitrary values too close to the end."""
        view = self._views.get(dtype)
        if view is None:
            width = np.dtype(dtype).itemsize
            data = self.data if len(self.data) >= width else self.data.ljust(width, b"\0")
            view = self._views[dtype] = np.ndarray((len(data) - width + 1,), dtype, data, 0, (1,))
        return view[np.minimum(at, len(view) - 1)]

    def numbers(self, code: str, at: Positions) -> npt.NDArray[Any]:
        """Returns numbers of a `struct` format, in this machine's byte order."""
        found = self.items(_DTYPES[code], at)
        return found != 0 if code == "?" else found.astype(found.dtype.newbyteorder("="))


class Located(NamedTuple):
    """The location of a field in each frame.

    kind: "fixed" (with `format`), "text", "data", "rest" (its size is its value), "name" (a member of `members`).
    size: size of text, data or rest in bytes. there: in which frames it is present, None for all; else it is `default`.
    """

    kind: str
    at: Positions
    format: str = ""
    size: Positions | None = None
    there: Mask | None = None
    default: Any = None
    members: Any = None
    unknown: Any = None


class Found(NamedTuple):
    """The fields of one command's frames, and which frames are good so far, before their texts are read."""

    fields: dict[str, Located]
    good: Mask


class Texts(NamedTuple):
    """Dictionary-encoded texts: `values[codes[n]]`; code -1 for an invalid text."""

    codes: npt.NDArray[np.int32]
    values: list[str]


class Plan(NamedTuple):
    """How to find the fields of a command. texts: the fields that must be read before a frame counts as good."""

    nodes: tuple[low.Node, ...]
    texts: tuple[str, ...]

    def find(self, view: View, start: Positions, end: Positions) -> Found:
        """Finds the fields of the bodies between `start` and `end`."""
        walk = _Walk(view, start, end)
        for node in self.nodes:
            walk.take(node, "")
        return Found(walk.fields, walk.good & (walk.at <= end))


@cache
def plan_of(cls: type[Command]) -> Plan | None:
    """Returns the plan of a command; None if it has a field that only the codec can read."""
    nodes = low.lower(cls.parts)
    if not all(map(_known, nodes)):
        return None
    return Plan(nodes, tuple(node.name for node in nodes if isinstance(_inner(node), low.Text)))


def _inner(node: low.Node) -> low.Node:
    return node.inner if isinstance(node, low.TailNode) else node


def _known(node: low.Node) -> bool:
    match node:
        case low.Fixed() | low.Number() | low.Text() | low.Data() | low.Remainder() | low.ZeroRun() | low.Constant():
            return True
        case low.TailNode(inner=low.Fixed(format=code)):
            return code != _ID
        case low.TailNode(inner=low.Text(), default=default):
            return bool(default == "")
        case low.TailNode(inner=low.Number()):
            return True
        case low.Structure(nodes=nodes):
            return all(isinstance(each, low.Constant | low.Data) for each in nodes)
    return False


class _Walk:
    """Walks the bodies of all frames of one command, field by field."""

    def __init__(self, view: View, start: Positions, end: Positions) -> None:
        self.view = view
        self.at = start
        self.end = end
        self.good: Mask = np.ones(len(start), np.bool_)
        self.fields: dict[str, Located] = {}

    def take(self, node: low.Node, prefix: str) -> None:
        """Finds one field and advances past it."""
        name = prefix + node.name
        at = self.at
        match node:
            case low.Fixed(format=code):
                self.fields[name] = Located("fixed", at, code)
                self.at = at + struct.calcsize(">" + code)
            case low.Number():
                self.fields[name] = Located("name", at, members=node.members, unknown=node.unknown)
                self.at = at + 4
            case low.Constant(value=value):
                self.good &= self.view.numbers("i", at) == value
                self.at = at + 4
            case low.Text():
                self._text(name, None)
            case low.Data():
                self._data(name, node)
            case low.Remainder() | low.ZeroRun():
                self.good &= at <= self.end
                self.fields[name] = Located("rest", at, size=self.end - at)
                self.at = self.end
            case low.TailNode():
                self._tail(name, node)
            case low.Structure():
                for each in node.nodes:
                    self.take(each, f"{name}.")
            case _:
                raise TypeError(f"{name}: there is no plan for a {type(node).__name__}")

    def _text(self, name: str, there: Mask | None) -> None:
        size = self.view.numbers("H", self.at).astype(np.int64)
        behind = self.at + 2
        if there is not None:
            size = np.where(there, size, 0)
            self.fields[name] = Located("text", behind, size=size)
            self.at = np.where(there, behind + size, self.at)
        else:
            self.fields[name] = Located("text", behind, size=size)
            self.at = behind + size

    def _data(self, name: str, node: low.Data) -> None:
        size = self.view.numbers("i", self.at).astype(np.int64)
        behind = self.at + 4
        if node.optional:
            there = self.end - self.at >= 4
            size = np.where(there, size, 0)
            behind = np.where(there, behind, self.at)
        if not node.negative_is_empty:
            self.good &= size >= 0
        size = np.maximum(size, 0)
        self.fields[name] = Located("data", behind, size=size)
        self.at = behind + size

    def _tail(self, name: str, node: low.TailNode) -> None:
        left = self.end - self.at
        there = left >= node.needs
        match node.inner:
            case low.Text():
                self._text(name, there)
                return
            case low.Fixed(format=code):
                width = struct.calcsize(">" + code)
                self.fields[name] = Located("fixed", self.at, code, there=there, default=node.default)
            case low.Number() as inner:
                width = 4
                self.fields[name] = Located(
                    "name", self.at, there=there, default=node.default, members=inner.members, unknown=inner.unknown
                )
            case _:
                raise TypeError(f"{name}: there is no plan for such a tail")
        if node.needs < width:
            self.good &= ~there | (left >= width)
        self.at = np.where(there, self.at + width, self.at)


# --- values -----------------------------------------------------------------------------------------------------


def read_numbers(view: View, field: Located, chosen: Positions | None = None) -> npt.NDArray[Any]:
    """Returns the values of a field of numbers or flags, or the sizes of a "rest" field, in the chosen frames."""
    if field.size is not None:
        return field.size if chosen is None else field.size[chosen]
    at, there = (field.at, field.there) if chosen is None else (field.at[chosen], _chosen(field.there, chosen))
    found = view.numbers(field.format, at)
    return found if there is None else np.where(there, found, found.dtype.type(field.default))


def _chosen(there: Mask | None, chosen: Positions) -> Mask | None:
    return None if there is None else there[chosen]


def read_texts(view: View, field: Located, known: dict[bytes, str | None]) -> Texts:
    """Returns the texts of a field. known: a cache of bytes → text, None for invalid text; filled by this function."""
    assert field.size is not None

    def text(data: bytes) -> str | None:
        if data not in known:
            try:
                known[data] = decode_mutf8(data)
            except ValueError:
                known[data] = None
        return known[data]

    return _by_content(view, field.at, field.size, text)


def read_ids(view: View, field: Located, chosen: Positions) -> Texts:
    """Returns the ids of a field, as text."""
    sizes = np.full(len(chosen), 16, np.int64)
    return _by_content(view, field.at[chosen], sizes, lambda data: str(uuid.UUID(bytes=data)))


def read_names(view: View, field: Located, chosen: Positions) -> Texts:
    """Returns the names of an enum field's members."""
    numbers = view.numbers("i", field.at[chosen])
    there = _chosen(field.there, chosen)
    if there is not None:
        numbers = np.where(there, numbers, np.int32(field.default))
    values, codes = np.unique(numbers, return_inverse=True)
    known = {int(member): member.name for member in field.members}
    return Texts(codes.astype(np.int32), [known.get(int(value), field.unknown.name) for value in values])


def _by_content(view: View, at: Positions, size: Positions, make: Callable[[bytes], str | None]) -> Texts:
    """Converts byte ranges to texts, each distinct content only once."""
    codes = np.full(len(at), -1, np.int32)
    values: list[str] = []
    counts = np.bincount(size) if len(size) else np.zeros(0, np.int64)
    for width in np.flatnonzero(counts):
        rows = None if counts[width] == len(at) else np.flatnonzero(size == width)
        where = at if rows is None else at[rows]
        if width == 0:
            found, numbers = [b""], np.zeros(len(where), np.int32)
        else:
            items = view.items(f"V{width}", where)
            array = pa.Array.from_buffers(pa.binary(int(width)), len(items), [None, pa.py_buffer(items)])
            coded = array.dictionary_encode()
            found, numbers = coded.dictionary.to_pylist(), coded.indices.to_numpy()
        made = [make(each) for each in found]
        moved = np.full(len(found), -1, np.int32)
        for index, text in enumerate(made):
            if text is not None:
                moved[index] = len(values)
                values.append(text)
        codes[slice(None) if rows is None else rows] = moved[numbers]
    return Texts(codes, values)
