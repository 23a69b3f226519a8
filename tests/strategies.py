"""Hypothesis strategies for commands, derived from the fields of their declarations.

`command_of` and `commands` give values that can be encoded: each text that Java can write, integers at their bounds,
payloads in every kind of buffer. `refused_of` gives values with one attribute that no frame can hold. `as_read` says
what comes back from the wire, where that is not what was sent. A node that is not known here is a TypeError, so a new
field type in the schema is drawn, or fails loudly, without a change to any test.
"""

from __future__ import annotations

import struct
import uuid
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st

from segstore.wire.schema import COMMANDS, FieldType, Nested, Rows, types

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hypothesis.strategies import DrawFn, SearchStrategy

    from segstore.wire.schema import Buffer, Command, WireStruct

__all__ = [
    "FRAMED",
    "as_read",
    "buffers",
    "command_of",
    "commands",
    "examples",
    "framed",
    "mutated",
    "refused_of",
    "texts",
    "with_body",
]

FRAMED = {code: cls for code, cls in sorted(COMMANDS.items()) if code != 0}
"""All commands that are frames of their own; EVENT (0) only occurs inside others."""


def examples(most: int) -> settings:
    """Settings of a test that needs at most this many examples; fewer in a profile with fewer than 100."""
    share = min(settings.default.max_examples, 100) / 100  # type: ignore[union-attr]
    return settings(max_examples=max(1, int(most * share)))


_BITS = {"b": 7, "i": 31, "q": 63}

LONGEST_TEXTS = ("x" * 65535, "\0" * 32767 + "x", "é" * 32767 + "x", "\uffff" * 21845, "😀" * 10922 + "\ud800")
TOO_LONG_TEXTS = ("x" * 65536, "\0" * 32768, "é" * 32768, "\uffff" * 21845 + "x", "😀" * 10923)
HARD_TEXTS = (
    "",
    "\0",
    "scope/stream/0.#epoch.0",
    "\x7f\x80\u07ff\u0800\uffff",
    "\ud800",
    "\udfff\ud800",
    "\ud83d\ude00",  # two lone surrogates that are one character once they are on the wire
    "😀",
    "\U0010ffff\U00010000",
)
HARD_IDS = tuple(map(uuid.UUID, (f"{0:032x}", "f" * 32, "8" + "0" * 31, f"{1 << 63:032x}", f"{(1 << 63) - 1:032x}")))


def texts() -> SearchStrategy[str]:
    """Any text that a string on the wire can hold, now and then one of the longest."""
    usual = st.one_of(st.text(st.characters(), max_size=12), st.sampled_from(HARD_TEXTS))
    return st.integers(0, 19).flatmap(lambda dice: usual if dice < 19 else st.sampled_from(LONGEST_TEXTS))


def buffers(max_size: int = 40) -> SearchStrategy[Buffer]:
    """Bytes in every kind of buffer that a payload may come in."""
    kinds = st.sampled_from(("bytes", "bytearray", "view", "writable", "inside", "wide"))
    return st.tuples(st.binary(max_size=max_size), kinds).map(lambda drawn: _as_buffer(*drawn))


def _as_buffer(data: bytes, kind: str) -> Buffer:
    match kind:
        case "bytearray":
            return bytearray(data)
        case "view":
            return memoryview(data)
        case "writable":
            return memoryview(bytearray(data))
        case "inside":
            return memoryview(bytearray(b"<" + data + b">"))[1:-1]
        case "wide":
            return memoryview(data + bytes(4 - len(data) % 4)).cast("I")
    return data


def integers(bits: int) -> SearchStrategy[int]:
    """Signed integers of `bits` bits and a sign, often at their bounds."""
    edges = (0, 1, -1, (1 << bits) - 1, -(1 << bits), (1 << bits) - 2, 1 << (bits - 1))
    return st.one_of(st.sampled_from(edges), st.integers(-(1 << bits), (1 << bits) - 1))


@cache
def _taken(node: FieldType) -> SearchStrategy[dict[str, Any]]:
    """Attribute → value, for the attributes that one node fills."""
    match node:
        case types.Marker():
            return st.just({})
        case types.SizedData(trailer=types.Fixed() as trailer):
            version = integers(_BITS[trailer.format])
            return st.fixed_dictionaries({node.name: buffers(), trailer.name: version})
        case Rows():
            rows = st.lists(st.tuples(*(_value(column) for column in node.columns)), max_size=5)
            names = [column.name for column in node.columns]
            return rows.map(lambda rows: {name: tuple(row[index] for row in rows) for index, name in enumerate(names)})
    return _value(node).map(lambda value: {node.name: value})


def _value(node: FieldType) -> SearchStrategy[Any]:
    match node:
        case types.Fixed(format="16s"):
            return st.one_of(st.uuids(), st.sampled_from(HARD_IDS))
        case types.Fixed(format="?"):
            return st.booleans()
        case types.Fixed(format=code):
            return integers(_BITS[code])
        case types.EnumCode(members=members):
            return st.sampled_from(members)
        case types.Text():
            return texts()
        case types.Blob() | types.Rest():
            return buffers()
        case types.SizedData(trailer=None):
            return buffers()
        case types.Zeros():
            return st.integers(0, 300)
        case types.Tail(inner=inner, default=default):
            return st.one_of(st.just(default), _value(inner))
        case Nested(record=record, parts=nodes):
            return _record(record, nodes)
        case types.Counted(element=element):
            return st.lists(_value(element), max_size=5).map(tuple)
    raise TypeError(f"no strategy for {type(node).__name__}")


def _record(record: type[WireStruct], nodes: tuple[FieldType, ...]) -> SearchStrategy[Any]:
    return st.tuples(*(_taken(node) for node in nodes)).map(lambda parts: record(**_joined(parts)))


def _joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


@cache
def command_of(cls: type[Command]) -> SearchStrategy[Command]:
    """Values of one class that can be encoded."""
    return _record(cls, cls.parts)


def commands() -> SearchStrategy[Command]:
    """Values of any class that can be encoded and is a frame of its own."""
    return st.sampled_from(tuple(FRAMED.values())).flatmap(command_of)


@cache
def refused_of(cls: type[Command]) -> SearchStrategy[Command]:
    """Values of one class with one attribute that its field cannot hold; empty where every value can be written."""
    return _refused_record(cls, cls.parts)


def _refused_record(record: type[WireStruct], nodes: tuple[FieldType, ...]) -> SearchStrategy[Any]:
    choices = []
    for bad, node in enumerate(nodes):
        refused = _refused(node)
        if refused.is_empty:
            continue
        parts = [refused if at == bad else _taken(each) for at, each in enumerate(nodes)]
        choices.append(st.tuples(*parts).map(lambda parts: record(**_joined(parts))))
    return st.one_of(choices) if choices else st.nothing()


def _refused(node: FieldType) -> SearchStrategy[dict[str, Any]]:
    match node:
        case types.Marker():
            return st.nothing()
        case types.SizedData(trailer=types.Fixed() as trailer):
            return st.one_of(
                st.fixed_dictionaries({node.name: _NOT_BUFFERS, trailer.name: integers(63)}),
                st.fixed_dictionaries({node.name: st.just(b"key"), trailer.name: _not_integers(63)}),
            )
        case Rows():
            columns = node.columns
            which = st.integers(0, len(columns) - 1)
            uneven = st.tuples(_taken(node), which).map(lambda drawn: _uneven(columns, *drawn))
            no_tuple = _taken(node).map(lambda values: values | {columns[0].name: "text"})
            return st.one_of(uneven, no_tuple)
    return _refused_value(node).map(lambda value: {node.name: value})


def _uneven(columns: tuple[FieldType, ...], values: dict[str, Any], index: int) -> dict[str, Any]:
    name = columns[index].name
    filler = 7 if isinstance(columns[index], types.Fixed) else "x"
    return values | {name: (*values[name], filler)}


_NOT_BUFFERS = st.sampled_from((None, "text", 5, [1], memoryview(b"abcdef")[::2]))
_NOT_TEXTS = st.sampled_from((*TOO_LONG_TEXTS, None, 5, b"bytes", ["text"]))


def _not_integers(bits: int) -> SearchStrategy[Any]:
    beyond = st.one_of(st.integers(min_value=1 << bits), st.integers(max_value=-(1 << bits) - 1))
    return st.one_of(st.sampled_from((None, 1.5, "1", b"1", [1])), beyond)


def _refused_value(node: FieldType) -> SearchStrategy[Any]:
    match node:
        case types.Fixed(format="16s"):
            return st.sampled_from((None, 5, str(uuid.UUID(int=5)), bytes(16)))
        case types.Fixed(format="?"):
            return st.nothing()  # whatever it is, it is true or false
        case types.Fixed(format=code):
            return _not_integers(_BITS[code])
        case types.EnumCode(members=members):
            return st.sampled_from((None, max(members) + 1, min(members) - 1, members(0).name, []))
        case types.Text():
            return _NOT_TEXTS
        case types.Blob(written=False):
            return st.nothing()
        case types.Blob() | types.Rest():
            return _NOT_BUFFERS
        case types.SizedData(trailer=None):
            return _NOT_BUFFERS
        case types.Zeros():
            return st.sampled_from((-1, -(1 << 70), 1.5, None, b"abc", (1, 2), 0x00FF_FFFF - 7, 1 << 31, 1 << 70))
        case types.Tail(inner=inner):
            return _refused_value(inner)
        case Nested(record=record, parts=nodes):
            return st.one_of(_refused_record(record, nodes), st.sampled_from((None, 5, _Impostor())))
        case types.Counted(element=element):
            several = st.lists(_value(element), max_size=3)
            around = st.tuples(several, _refused_value(element), several)
            one_bad = around.map(lambda drawn: (*drawn[0], drawn[1], *drawn[2]))
            return st.one_of(one_bad, st.sampled_from((None, 5, "text", b"ab", {})))
    raise TypeError(f"no strategy for {type(node).__name__}")


class _Impostor:
    """Has every attribute of every record, and is none."""

    data = b"data"
    key_version = 1
    entries = ()
    key = value = None

    def __repr__(self) -> str:
        return "<impostor>"


def as_read(value: Any) -> Any:
    """What the wire gives back of a value: neighbouring surrogates joined, what is never written left out."""
    return _read_record(value, value.parts)


def _read_record(value: Any, nodes: tuple[FieldType, ...]) -> Any:
    values: dict[str, Any] = {}
    for node in nodes:
        match node:
            case types.Marker():
                continue
            case types.SizedData(trailer=types.Fixed() as trailer):
                data = values[node.name] = bytes(getattr(value, node.name))
                values[trailer.name] = getattr(value, trailer.name) if data else node.missing
            case Rows():
                for column in node.columns:
                    values[column.name] = tuple(_read(column, each) for each in getattr(value, column.name))
            case _:
                values[node.name] = _read(node, getattr(value, node.name))
    return type(value)(**values)


def _read(node: FieldType, value: Any) -> Any:
    match node:
        case types.Text():
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        case types.Blob(written=False):
            return b""
        case types.Blob() | types.Rest() | types.SizedData():
            return bytes(value)
        case types.Tail(inner=inner):
            return _read(inner, value)
        case Nested(parts=nodes):
            return _read_record(value, nodes)
        case types.Counted(element=element):
            return tuple(_read(element, each) for each in value)
    return value


def framed(code: int, body: bytes) -> bytes:
    """A frame whose header tells the truth about its body."""
    return struct.pack(">ii", code, len(body)) + body


def with_body(frame: bytes, body: bytes) -> bytes:
    """The frame with another body, its header set right."""
    return frame[:4] + struct.pack(">i", len(body)) + body


_HOSTILE = (-1, -(1 << 31), (1 << 31) - 1, 0, 1, 2, 0xFFFF, 0x10000, 0x00FF_FFFF, 1 << 24, 1 << 28)


@st.composite
def mutated(draw: DrawFn, data: bytes) -> bytes:
    """The data after a few of the changes that break parsers: flips, cuts, repeats, hostile counts and lengths."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(out)))
        match draw(st.sampled_from(("flip", "number", "short", "insert", "remove", "repeat"))):
            case "flip" if at < len(out):
                out[at] ^= 1 << draw(st.integers(0, 7))
            case "number":
                near = len(out) - at + draw(st.integers(-5, 5))
                out[at : at + 4] = struct.pack(">i", draw(st.sampled_from((*_HOSTILE, near))))
            case "short":
                near = max(0, len(out) - at + draw(st.integers(-5, 5))) & 0xFFFF
                out[at : at + 2] = struct.pack(">H", draw(st.sampled_from((0, 1, 0x7FFF, 0xFFFF, near))))
            case "insert":
                out[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "remove":
                del out[at : at + draw(st.integers(1, 9))]
            case "repeat":
                out[at:at] = out[at : at + draw(st.integers(1, 40))]
    return bytes(out)
