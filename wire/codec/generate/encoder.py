"""Generates encoders from the fields of the schema: one that joins the frame, or one that returns its buffers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from segstore.wire.codec.generate.runtime import MAX_BODY, TooLong, check_list, size_of, text_bytes
from segstore.wire.codec.generate.source import Source
from segstore.wire.schema import FieldType, Nested, Rows, types

if TYPE_CHECKING:
    from collections.abc import Callable

    from segstore.wire.schema import Command


class Writer:
    """Emits code that encodes nodes: `run` collects fixed-width fields, `pieces` the expressions to join.

    A piece is (expression, kind): "bytes", "payload" (a caller's buffer) or "list" (a list of either).
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.run: list[tuple[str, str]] = []
        self.condition = ""  # the condition under which the first field of the run is written
        self.pieces: list[tuple[str, str]] = []
        self.constant_size = 0
        self.sizes: list[str] = []
        self.bounded = True

    def fixed(self, code: str, expression: str) -> None:
        self.run.append((code, expression))
        self.constant_size += struct.calcsize(">" + code)

    def fixed_if(self, condition: str, code: str, expression: str) -> None:
        """Adds a field that is only written if a condition holds; it starts a new run."""
        self.flush()
        self.condition = condition
        self.run.append((code, expression))
        self.sizes.append(f"({struct.calcsize('>' + code)} if {condition} else 0)")

    def flush(self) -> None:
        if not self.run:
            return
        piece = self._pack(self.run)
        if self.condition:
            piece = f"({piece} if {self.condition} else {self._pack(self.run[1:])})"
        self.pieces.append((piece, "bytes"))
        self.run = []
        self.condition = ""

    def _pack(self, run: list[tuple[str, str]]) -> str:
        if not run:
            return 'b""'
        pack, _ = self.source.struct((code for code, _ in run), "pack")
        return f"{pack}({', '.join(expression for _, expression in run)})"

    def variable(self, expression: str, size: str, kind: str) -> None:
        self.flush()
        self.pieces.append((expression, kind))
        self.sizes.append(size)
        if kind != "bytes":
            self.bounded = False

    def total(self) -> str:
        return " + ".join([*([str(self.constant_size)] if self.constant_size else []), *self.sizes]) or "0"

    def nodes(self, nodes: tuple[FieldType, ...], value: str) -> None:
        for node in nodes:
            self.node(node, _attribute(value, node.name), value)

    def node(self, node: FieldType, value: str, owner: str) -> None:
        source = self.source
        match node:
            case types.Fixed(format="16s"):
                self.fixed("16s", f'{value}.int.to_bytes(16, "big")')
            case types.Fixed(format=code):
                self.fixed(code, value)
            case types.EnumCode(members=members):
                codes = source.constant({int(member): int(member) for member in members}, "CODES")
                self.fixed("i", f"{codes}[{value}]")
            case types.Marker(value=number):
                self.fixed("i", str(number))
            case types.Text():
                text = source.fresh("s")
                source.line(f"{text} = {source.constant(text_bytes, 'TEXT')}({value})")
                self.variable(text, f"len({text})", "bytes")
            case types.Blob(written=False):
                self.fixed("i", "0")
            case types.Blob():
                data, size = self._buffer(value)
                self.fixed("i", size)
                self.variable(data, size, "payload")
            case types.Rest():
                data, size = self._buffer(value)
                self.variable(data, size, "payload")
            case types.Zeros():
                data, size = source.fresh("d"), source.fresh("n")
                source.line(f"{size} = {value}")
                source.line(f"if {size} > {MAX_BODY}: raise ValueError")
                source.line(f"{data} = bytes({size})")
                self.variable(data, size, "payload")
            case types.SizedData():
                self._sized(node, value, owner)
            case types.Tail(inner=inner):
                self.node(inner, value, owner)
            case Nested(record=record, parts=parts):
                inner_value = source.fresh("c")
                source.line(f"{inner_value} = {value}")
                cls = source.constant(record, record.__name__)
                source.line(f"if type({inner_value}) is not {cls}: raise TypeError")
                self.nodes(parts, inner_value)
            case types.Counted():
                self._many(node, value)
            case Rows(columns=columns):
                self._table(columns, owner)
            case _:
                raise TypeError(f"no encoder for {type(node).__name__}")

    def _buffer(self, value: str) -> tuple[str, str]:
        data, size = self.source.fresh("d"), self.source.fresh("n")
        measure = self.source.constant(size_of, "SIZE")
        self.source.line(f"{data} = {value}")
        self.source.line(f"{size} = len({data}) if type({data}) is bytes else {measure}({data})")
        return data, size

    def _sized(self, node: types.SizedData, value: str, owner: str) -> None:
        data, size = self._buffer(value)
        self.fixed("i", f"{size} + {4 + node.width}")
        self.fixed("i", size)
        self.variable(data, size, "payload")
        if node.trailer is not None:
            self.fixed_if(size, node.trailer.format, f"{_attribute(owner, node.trailer.name)}")

    def _many(self, node: types.Counted, value: str) -> None:
        source = self.source
        items, count = source.fresh("l"), source.fresh("n")
        source.line(f"{items} = {value}; {count} = len({items})")
        self._check(items)
        self.fixed("i", count)
        if isinstance(node.element, types.Fixed) and node.element.format in "bhiq":
            packed = source.fresh("t")
            pack = source.constant(struct.pack, "PACK")
            source.line(f'{packed} = {pack}(f">{{{count}}}{node.element.format}", *{items})')
            self.variable(packed, f"len({packed})", "list_bytes")
            return
        item = source.fresh("i")
        self._loop(f"for {item} in {items}:", ((node.element, item, item),))

    def _table(self, columns: tuple[FieldType, ...], owner: str) -> None:
        source = self.source
        names, items = [source.fresh("l") for _ in columns], [source.fresh("i") for _ in columns]
        for name, column in zip(names, columns, strict=True):
            source.line(f"{name} = {_attribute(owner, column.name)}")
            self._check(name)
        self.fixed("i", f"len({names[0]})")
        head = f"for {', '.join(items)} in zip({', '.join(names)}, strict=True):"
        self._loop(head, tuple((column, item, item) for column, item in zip(columns, items, strict=True)))

    def _check(self, items: str) -> None:
        check = self.source.constant(check_list, "CHECK")
        self.source.line(f"if type({items}) is not tuple: {check}({items})")

    def _loop(self, head: str, elements: tuple[tuple[FieldType, str, str], ...]) -> None:
        source = self.source
        out, size = source.fresh("l"), source.fresh("n")
        source.line(f"{out} = []; {size} = 0")
        source.line(head)
        source.depth += 1
        inner = Writer(source)
        for element, value, owner in elements:
            inner.node(element, value, owner)
        inner.flush()
        if len(inner.pieces) == 1 and inner.pieces[0][1] != "list":
            source.line(f"{out}.append({inner.pieces[0][0]})")
        else:
            source.line(f"{out} += {_display(inner.pieces)}")
        source.line(f"{size} += {inner.total()}")
        source.depth -= 1
        self.variable(out, size, "list")


def _display(pieces: list[tuple[str, str]]) -> str:
    """Returns the pieces as a tuple display."""
    return f"({', '.join(f'*{piece}' if kind == 'list' else piece for piece, kind in pieces)},)"


def _attribute(owner: str, name: str) -> str:
    """Returns the expression for an attribute, or for the owner itself."""
    return f"{owner}.{name}" if name else owner


def make_encoder(cls: type[Command], *, parts: bool = False) -> Callable[[Any], Any]:
    """`encode(command) -> frame`; with `parts`, the buffers of the frame, payloads as the caller's own buffers."""
    source = Source()
    body = Writer(source)
    body.run = [("i", str(cls.code)), ("i", "size")]
    body.nodes(cls.parts, "c")
    if not body.sizes:
        body.run[1] = ("i", str(body.constant_size))  # every frame of this command has the same size
    body.flush()
    if body.sizes:
        source.line(f"size = {body.total()}")
    if not body.bounded:
        source.line(f"if size > {MAX_BODY}: raise {source.constant(TooLong, 'TOO_LONG')}(size)")
    if parts:
        source.line(f"return {_as_parts(body.pieces)}")
    elif len(body.pieces) > 2 or any(kind == "list" for _, kind in body.pieces):
        source.line(f'return b"".join({_as_parts(body.pieces)})')
    else:
        source.line(f"return {' + '.join(piece for piece, _ in body.pieces)}")
    return source.compiled("encode", "c", cls.type_name)


def _as_parts(pieces: list[tuple[str, str]]) -> str:
    """Returns a list display in which adjacent small pieces are joined and payloads are separate."""
    groups: list[str] = []
    small: list[str] = []
    for piece, kind in [*pieces, ("", "end")]:
        if kind in ("bytes", "list_bytes"):
            small.append(piece)
            continue
        if small:
            groups.append(" + ".join(small))
            small = []
        if kind != "end":
            groups.append(f"*{piece}" if kind == "list" else piece)
    return f"[{', '.join(groups)}]"
