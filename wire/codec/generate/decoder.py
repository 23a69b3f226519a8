"""Generates decoders from the fields of the schema.

Invariant: a decoder accepts exactly the bytes that the schema accepts and returns an equal value; for all other bytes
it raises an error of `REFUSALS`, and its caller gets the reason from the schema. While running it may read bytes after
the frame (in the same buffer); lengths are unsigned or checked, so its position only grows, and one comparison at the
end detects overruns, before anything is returned.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from segstore.wire.codec.generate.runtime import Short, uuid_of
from segstore.wire.codec.generate.source import Source
from segstore.wire.schema import FieldType, Nested, Rows, decode_mutf8, types

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.wire.schema import Command


class Reader:
    """Emits the decoding of nodes. `b` is a view of bytes, `e` the end of the frame.

    The position is `base`, a variable, and `ahead`, a number of bytes known here. Fixed fields wait in `run` until
    something of a variable size ends the run.
    """

    def __init__(self, source: Source, most_elements: int | None = None) -> None:
        self.source = source
        self.most_elements = most_elements  # in a list
        self.base = "o"
        self.ahead = 0
        self.run: list[tuple[str, str]] = []

    def fixed(self, code: str, stem: str = "x") -> str:
        name = self.source.fresh(stem)
        self.run.append((code, name))
        return name

    def at(self, more: int = 0) -> str:
        """The position, `more` bytes on, as an expression."""
        ahead = self.ahead + more
        return f"{self.base} + {ahead}" if ahead else self.base

    def move(self, base: str) -> None:
        self.base, self.ahead = base, 0

    def flush(self) -> None:
        if self.run:
            read, size = self.source.struct((code for code, _ in self.run), "read")
            names = "".join(f"{name}, " for _, name in self.run)
            self.source.line(f"{names}= {read}(b, {self.at()})")
            self.ahead += size
            self.run = []

    def settle(self) -> None:
        """After this, `o` is the position."""
        self.flush()
        if self.at() != "o":
            self.source.line(f"o = {self.at()}")
        self.move("o")

    def refuse(self, condition: str) -> None:
        self.source.line(f"if {condition}: raise {self.source.constant(Short, 'SHORT')}")

    def end(self) -> None:
        """Refuses what ran over the end."""
        self.flush()
        if self.at() != "e":
            self.refuse(f"{self.at()} > e")

    def nodes(self, nodes: tuple[FieldType, ...]) -> dict[str, str]:
        """Emits all nodes; returns attribute → expression."""
        values: dict[str, str] = {}
        for node in nodes:
            self.node(node, values)
        return values

    def node(self, node: FieldType, values: dict[str, str]) -> None:
        line = self.source.line
        match node:
            case types.Fixed(name=name, format="16s"):
                values[name] = f"{self.source.constant(uuid_of, 'UUID')}({self.fixed('16s')})"
            case types.Fixed(name=name, format=code):
                values[name] = self.fixed(code)
            case types.EnumCode(name=name, members=members, unknown=unknown):
                by_code = self.source.constant({int(member): member for member in members}, "MEMBERS")
                values[name] = f"{by_code}.get({self.fixed('i')}, {self.source.constant(unknown, 'UNKNOWN')})"
            case types.Marker(value=value):
                found = self.fixed("i")
                self.flush()
                self.refuse(f"{found} != {value}")
            case types.Text(name=name):
                values[name] = self._text()
            case types.Blob(name=name):
                values[name] = self._data(node)
            case types.Rest(name=name):
                self.end()
                values[name] = target = self.source.fresh("d")
                line(f"{target} = b[{self.at()}:e]")
                self.move("e")
            case types.Zeros(name=name):
                self.end()
                values[name] = target = self.source.fresh("n")
                line(f"{target} = e - ({self.at()})")
                self.move("e")
            case types.SizedData():
                self._sized(node, values)
            case types.Tail(name=name):
                self._tail(node, values)
            case Nested(name=name, record=record, parts=parts):
                inner = self.nodes(parts)
                values[name] = self._make(record, inner)
            case types.Counted(name=name):
                values[name] = self._many(node)
            case Rows():
                self._table(node, values)
            case _:
                raise TypeError(f"no decoder for {type(node).__name__}")

    def _make(self, record: Any, values: dict[str, str]) -> str:
        if not record.__struct_fields__:
            return self.source.constant(record(), "ONLY")  # immutable and all alike
        cls = self.source.constant(record, record.__name__)
        return f"{cls}({', '.join(values[name] for name in record.__struct_fields__)})"

    def _text(self) -> str:
        line = self.source.line
        size = self.fixed("H", "n")
        self.flush()
        start, stop, target = self.at(), self.source.fresh("p"), self.source.fresh("s")
        line(f"if {size}:")
        self.source.depth += 1
        line(f"{stop} = {start} + {size}")
        line(f'try: {target} = str(b[{start}:{stop}], "ascii")')
        mutf8 = self.source.constant(decode_mutf8, "MUTF8")
        line(f"except UnicodeDecodeError: {target} = {mutf8}(bytes(b[{start}:{stop}]))")
        self.source.depth -= 1
        line(f'else: {target} = ""; {stop} = {start}')
        self.move(stop)
        return target

    def _data(self, node: types.Blob) -> str:
        line = self.source.line
        target = self.source.fresh("d")
        if node.optional:
            self.settle()
            line("if e - o >= 4:")
            self.source.depth += 1
        size = self.fixed("i", "n")
        self.flush()
        start, stop = self.at(), self.source.fresh("p")
        line(f"if {size} > 0: {stop} = {start} + {size}; {target} = b[{start}:{stop}]")
        if not node.negative_is_empty:
            line(f"elif {size}: raise {self.source.constant(Short, 'SHORT')}")
        line(f"else: {stop} = {start}; {target} = b''")
        self.move(stop)
        if node.optional:
            self.settle()
            self.source.depth -= 1
            line(f"else: {target} = b''")
        return target

    def _sized(self, node: types.SizedData, values: dict[str, str]) -> None:
        line = self.source.line
        total, size = self.fixed("i", "t"), self.fixed("i", "n")
        self.flush()
        start, behind = self.at(-8), self.at()
        data = values[node.name] = self.source.fresh("d")
        stop = self.source.fresh("p")
        line(f"if {size}:")
        self.source.depth += 1
        self.refuse(f"{size} < 0 or {total} > e - ({start})")
        line(f"{stop} = {behind} + {size}; {data} = b[{behind}:{stop}]")
        if node.trailer is not None:
            read, width = self.source.struct([node.trailer.format], "read")
            trailer = values[node.trailer.name] = self.source.fresh("x")
            line(f"{trailer}, = {read}(b, {stop}); {stop} += {width}")
        self.source.depth -= 1
        line("else:")
        self.source.depth += 1
        line(f"{data} = b''; {stop} = {behind}")
        if node.trailer is not None:
            line(f"{trailer} = {self.source.constant(node.missing, 'DEFAULT')}")
        self.source.depth -= 1
        self.move(stop)

    def _tail(self, node: types.Tail, values: dict[str, str]) -> None:
        self.settle()
        target = self.source.fresh("x")
        self.source.line(f"if e - o >= {node.needs}:")
        self.source.depth += 1
        inner: dict[str, str] = {}
        self.node(node.inner, inner)
        self.settle()
        self.source.line(f"{target} = {inner[node.name]}")
        self.source.depth -= 1
        self.source.line(f"else: {target} = {self.source.constant(node.default, 'DEFAULT')}")
        values[node.name] = target

    def _count(self, smallest: int, negative_is_empty: bool) -> str:
        count = self.fixed("i", "n")
        self.settle()
        if negative_is_empty:
            self.source.line(f"if {count} < 0: {count} = 0")
        else:
            self.refuse(f"{count} < 0")
        self.refuse(f"{count} * {smallest} > e - o")
        if self.most_elements is not None:
            self.refuse(f"{count} > {self.most_elements}")
        return count

    def _many(self, node: types.Counted) -> str:
        count = self._count(node.smallest, node.negative_is_empty)
        target = self.source.fresh("l")
        if isinstance(node.element, types.Fixed) and node.element.format in "bhiq":
            unpack = self.source.constant(struct.unpack_from, "UNPACK")
            self.source.line(f'{target} = {unpack}(f">{{{count}}}{node.element.format}", b, o)')
            self.source.line(f"o += {count} * {node.smallest}")
        else:
            self._loop(count, (node.element,), [target])
        return target

    def _table(self, node: Rows, values: dict[str, str]) -> None:
        count = self._count(node.smallest, negative_is_empty=False)
        targets = [self.source.fresh("l") for _ in node.columns]
        values.update(zip((column.name for column in node.columns), targets, strict=True))
        self._loop(count, node.columns, targets)

    def _loop(self, count: str, elements: tuple[FieldType, ...], targets: list[str]) -> None:
        line = self.source.line
        for target in targets:
            line(f"{target} = []")
        line(f"for _ in range({count}):")
        self.source.depth += 1
        values = self.nodes(elements)
        self.settle()
        for element, target in zip(elements, targets, strict=True):
            line(f"{target}.append({values[element.name]})")
        self.source.depth -= 1
        for target in targets:
            line(f"{target} = tuple({target})")


def make_decoder(cls: type[Command], most_elements: int | None = None) -> Callable[[memoryview, int, int], Any]:
    """`decode(view, start, end) -> cls` for a body between start and end of a view of bytes.

    most_elements: the maximum number of elements of a list; None for as many as the bytes allow.
    """
    source = Source()
    reader = Reader(source, most_elements)
    values = reader.nodes(cls.parts)
    reader.end()
    source.line(f"return {reader._make(cls, values)}")
    return source.compiled("decode", "b, o, e", cls.type_name)
