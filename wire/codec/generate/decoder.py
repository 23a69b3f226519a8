"""Generates the source of decoders from the intermediate form.

Their safety rule is that of `segstore.wire.codec.generate.compiler`: positions only grow, and reads beyond the end of
the frame are refused before anything is returned.
"""

from __future__ import annotations

import struct
import sys
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from segstore.wire.codec.generate.runtime import REFUSALS, UUIDS, Rows, Short, run_length
from segstore.wire.codec.generate.source import Source
from segstore.wire.schema import EAGER_ELEMENTS, Elements, decode_mutf8, pass_texts, well_formed
from segstore.wire.schema import lowering as low

if TYPE_CHECKING:
    from segstore.wire.schema import Command


class Reader:
    """Emits the decoding of nodes. `b` is the buffer, `v` a view of it, `e` the end of the frame.

    The position is `base`, a variable ("" is the start of the buffer), and `ahead`, a number of bytes known here. Fixed
    fields wait in `run` until something of a variable size ends the run.
    """

    def __init__(self, source: Source, slice_text: str, base: str, most_elements: int | None = None) -> None:
        self.source = source
        self.most_elements = most_elements  # in a list
        self.slice_text = slice_text
        self.base = base
        self.ahead = 0
        self.run: list[tuple[str, str]] = []
        self.after_flush: list[str] = []  # lines that follow the first read
        self.read: dict[str, str] = {}  # attribute → the variable that was read for it, for UUIDs: their bytes
        self.ended = False  # what was emitted has compared the position with the end
        self.views = 0  # slices of `v`; many, where a loop takes them
        self.passing = False  # what is read is only checked, and made later

    def fixed(self, code: str, stem: str = "x") -> str:
        name = self.source.fresh(stem)
        self.run.append((code, name))
        return name

    def at(self, more: int = 0) -> str:
        """The position, `more` bytes on, as an expression."""
        ahead = self.ahead + more
        if not self.base:
            return str(ahead)
        return f"{self.base} + {ahead}" if ahead else self.base

    def move(self, base: str) -> None:
        self.base, self.ahead = base, 0

    def flush(self) -> None:
        if self.run:
            self.ahead += self._read(self.run, self.at())
            self.run = []
            for text in self.after_flush:
                self.source.line(text)
            self.after_flush = []

    def _read(self, run: list[tuple[str, str]], at: str) -> int:
        read, size = self.source.struct((code for code, _ in run), "read")
        names = ", ".join(name for _, name in run) + ("," if len(run) == 1 else "")
        self.source.line(f"{names} = {read}(b, {at})")
        return size

    def settle(self) -> None:
        """After this, `o` is the position."""
        self.flush()
        if self.at() != "o":
            self.source.line(f"o = {self.at()}")
        self.move("o")

    def refuse(self, condition: str) -> None:
        self.source.line(f"if {condition}: raise {self.source.constant(Short, 'SHORT')}")

    def end(self) -> None:
        """Refuses what ran over the end, unless that is done."""
        self.flush()
        if not self.ended:
            self.refuse(f"{self.at()} > e")

    def nodes(self, nodes: tuple[low.Node, ...], *, body: bool = False) -> dict[str, str]:
        """Emits all nodes; returns attribute → expression. body: nothing follows them."""
        values: dict[str, str] = {}
        at = 0
        while at < len(nodes):
            tails = _fixed_tails(nodes, at)
            if tails:
                at += len(tails)
                self._tails(tails, values, last=body and at == len(nodes))
            else:
                self.node(nodes[at], values)
                at += 1
        return values

    def _tails(self, tails: list[low.TailNode], values: dict[str, str], *, last: bool) -> None:
        """Fixed tails, read together with the run before them where the frame has them all, as today's peers send."""
        line = self.source.line
        run = self.run
        self.run = []
        names = [self.source.fresh("x") for _ in tails]
        values.update(zip((tail.name for tail in tails), names, strict=True))
        whole = [*run, *((_format(tail.inner), name) for tail, name in zip(tails, names, strict=True))]
        _, size = self.source.struct((code for code, _ in whole), "read")
        start = self.at()
        line(f"if e - {start} >= {size}:" if self.base else f"if e >= {self.ahead + size}:")
        self.source.depth += 1
        self._read(whole, start)
        if not last:
            line(f"o = {self.at(size)}")
        self.source.depth -= 1
        line("else:")
        self.source.depth += 1
        self.run = run
        if last:
            self.end()
            self.ended = True
        if last and len(tails) == 1:
            line(f"{names[0]} = {self.source.constant(tails[0].default, 'DEFAULT')}")
        else:
            self.settle()
            for tail, name in zip(tails, names, strict=True):
                read, size = self.source.struct([_format(tail.inner)], "read")
                line(f"if e - o >= {tail.needs}: {name}, = {read}(b, o); o += {size}")
                line(f"else: {name} = {self.source.constant(tail.default, 'DEFAULT')}")
        self.source.depth -= 1
        self.run = []
        self.move("o")

    def node(self, node: low.Node, values: dict[str, str]) -> None:
        line = self.source.line
        match node:
            case low.Fixed(name=name, format="16s"):
                self.read[name] = self.fixed("16s")
                values[name] = f"{self.source.constant(UUIDS, 'UUIDS')}[{self.read[name]}]"
            case low.Fixed(name=name, format=code):
                values[name] = self.fixed(code)
            case low.Number(name=name, members=members, unknown=unknown):
                by_code = self.source.constant({int(each): each for each in members}, "MEMBERS")
                values[name] = f"{by_code}.get({self.fixed('i')}, {self.source.constant(unknown, 'UNKNOWN')})"
            case low.Constant(value=value):
                found = self.fixed("i")
                self.flush()
                self.refuse(f"{found} != {value}")
            case low.Text(name=name):
                values[name] = self._text()
            case low.Data(name=name):
                values[name] = self._data(node)
            case low.Remainder(name=name):
                self.end()
                values[name] = target = self.source.fresh("d")
                line(f"{target} = {self._view(self.at(), 'e')}")
                self.move("e")
                self.ended = True
            case low.ZeroRun(name=name):
                self.end()
                values[name] = target = self.source.fresh("n")
                line(f"{target} = e - {self.at()}" if self.base else f"{target} = e - ({self.at()})")
                self.move("e")
                self.ended = True
            case low.Sized():
                self._sized(node, values)
            case low.TailNode(name=name):
                self._tail(node, values)
            case low.Structure(name=name, record=record, nodes=nodes):
                inner = self.nodes(nodes)
                values[name] = self._make(record, inner)
            case low.Many(name=name):
                values[name] = self._many(node)
            case low.Table():
                self._table(node, values)
            case _:
                raise TypeError(f"no decoder for {type(node).__name__}")

    def _make(self, record: Any, values: dict[str, str]) -> str:
        if not record.__struct_fields__:
            return self.source.constant(record(), "ONLY")  # immutable and all alike
        cls = self.source.constant(record, record.__name__)
        return f"{cls}({', '.join(values[name] for name in record.__struct_fields__)})"

    def _view(self, start: str, stop: str) -> str:
        self.views += 1
        return f"v[{start}:{stop}]"

    def _text(self) -> str:
        line = self.source.line
        size = self.fixed("H", "n")
        self.flush()
        start, stop, target = self.at(), self.source.fresh("p"), self.source.fresh("s")
        if self.passing:
            line(f"{stop} = {start} + {size}")
            self.refuse(f"{stop} > e or not {self.source.constant(well_formed, 'WELL_FORMED')}(b, {start}, {stop})")
            self.move(stop)
            return "None"
        line(f"if {size}:")
        self.source.depth += 1
        line(f"{stop} = {start} + {size}")
        line(f'try: {target} = {self.slice_text.format(start, stop)}.decode("ascii")')
        mutf8 = self.source.constant(decode_mutf8, "MUTF8")
        line(f"except UnicodeDecodeError: {target} = {mutf8}(bytes(b[{start}:{stop}]))")
        self.source.depth -= 1
        line(f'else: {target} = ""; {stop} = {start}')
        self.move(stop)
        return target

    def _data(self, node: low.Data) -> str:
        line = self.source.line
        target = self.source.fresh("d")
        if node.optional:
            self.settle()
            line("if e - o >= 4:")
            self.source.depth += 1
        size = self.fixed("i", "n")
        self.flush()
        start, stop = self.at(), self.source.fresh("p")
        line(f"if {size} > 0: {stop} = {start} + {size}; {target} = {self._view(start, stop)}")
        if not node.negative_is_empty:
            line(f"elif {size}: raise {self.source.constant(Short, 'SHORT')}")
        line(f"else: {stop} = {start}; {target} = b''")
        self.move(stop)
        if node.optional:
            self.settle()
            self.source.depth -= 1
            line(f"else: {target} = b''")
        return target

    def _sized(self, node: low.Sized, values: dict[str, str]) -> None:
        line = self.source.line
        total, size = self.fixed("i", "t"), self.fixed("i", "n")
        self.flush()
        start, behind = self.at(-8), self.at()
        data = values[node.name] = self.source.fresh("d")
        stop = self.source.fresh("p")
        line(f"if {size}:")
        self.source.depth += 1
        self.refuse(f"{size} < 0 or {total} > e - ({start})")
        line(f"{stop} = {behind} + {size}; {data} = {self._view(behind, stop)}")
        if node.trailer_format:
            read, width = self.source.struct([node.trailer_format], "read")
            trailer = values[node.trailer_name] = self.source.fresh("x")
            line(f"{trailer}, = {read}(b, {stop}); {stop} += {width}")
        self.source.depth -= 1
        line("else:")
        self.source.depth += 1
        line(f"{data} = b''; {stop} = {behind}")
        if node.trailer_format:
            line(f"{trailer} = {self.source.constant(node.missing, 'DEFAULT')}")
        self.source.depth -= 1
        self.move(stop)

    def _tail(self, node: low.TailNode, values: dict[str, str]) -> None:
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

    def _many(self, node: low.Many) -> str:
        count = self._count(node.smallest, node.negative_is_empty)
        target = self.source.fresh("l")
        self._unless_long(count, (node.element,), [target])
        if isinstance(node.element, low.Fixed) and node.element.format in "bhiq":
            unpack = self.source.constant(struct.unpack_from, "UNPACK")
            self.source.line(f'{target} = {unpack}(f">{{{count}}}{node.element.format}", b, o)')
            self.source.line(f"o += {count} * {node.smallest}")
        else:
            self._loop(count, (node.element,), [target])
        self.source.depth -= 1
        return target

    def _table(self, node: low.Table, values: dict[str, str]) -> None:
        count = self._count(node.smallest, negative_is_empty=False)
        targets = [self.source.fresh("l") for _ in node.columns]
        values.update(zip((column.name for column in node.columns), targets, strict=True))
        self._unless_long(count, node.columns, targets)
        self._loop(count, node.columns, targets)
        self.source.depth -= 1

    def _unless_long(self, count: str, elements: tuple[low.Node, ...], targets: list[str]) -> None:
        """A long list becomes `Elements`; after this, source is written for a short one."""
        source = self.source
        lazily = source.constant(Elements, "ELEMENTS")
        walk = self._walker(elements)
        rows = source.fresh("l")
        source.line(f"if {count} > {EAGER_ELEMENTS}:")
        source.depth += 1
        self.views += 2  # the walk takes `v` itself
        bound = f"{source.constant(partial, 'PARTIAL')}({walk}, b, v, o, e, {count})"
        behind = source.fresh("p")
        if len(elements) == 1 and isinstance(elements[0], low.Text):
            passed = source.fresh("n")
            source.line(f"{passed}, {behind} = {source.constant(pass_texts, 'PASS_TEXTS')}(b, o, e, {count})")
            self.refuse(f"{passed} != {count}")
        else:
            source.line(f"{behind} = {self._passer(elements)}(b, v, o, e, {count})")
        source.line(f"{rows} = {lazily}({bound}, {count}, {behind})")
        source.line(f"o = {behind}")
        for index, target in enumerate(targets):
            source.line(f"{target} = {rows}" if len(targets) == 1 else f"{target} = {rows}.column({index})")
        source.depth -= 1
        source.line("else:")
        source.depth += 1

    def _walker(self, elements: tuple[low.Node, ...]) -> str:
        """The name of a generator function that yields each element, or row, with the position behind it."""
        outer, self.source = self.source, Source()
        self.source.constants = outer.constants
        self.source.line("for _ in range(n):")
        self.source.depth += 1
        before = self.views
        values = self.nodes(elements)
        self.settle()
        made = ", ".join(values[element.name] for element in elements)
        self.source.line(f"yield {made if len(elements) == 1 else f'({made})'}, o")
        inner, self.source, self.views = self.source, outer, before
        name = outer.fresh("walk")
        outer.functions.append(inner.text(f"def {name}(b, v, o, e, n):"))
        return name

    def _passer(self, elements: tuple[low.Node, ...]) -> str:
        """The name of a function that goes past the elements, checks them and makes nothing of them."""
        outer, self.source = self.source, Source()
        self.source.constants = outer.constants
        self.source.line("for _ in range(n):")
        self.source.depth += 1
        before, self.passing = self.views, True
        self.nodes(elements)
        self.settle()
        self.source.depth -= 1
        self.source.line("return o")
        inner, self.source, self.views, self.passing = self.source, outer, before, False
        name = outer.fresh("past")
        outer.functions.append(inner.text(f"def {name}(b, v, o, e, n):"))
        return name

    def _loop(self, count: str, elements: tuple[low.Node, ...], targets: list[str]) -> None:
        line = self.source.line
        for target in targets:
            line(f"{target} = []")
        line(f"for _ in range({count}):")
        self.source.depth += 1
        before = self.views
        values = self.nodes(elements)
        self.views += self.views - before
        self.settle()
        for element, target in zip(elements, targets, strict=True):
            line(f"{target}.append({values[element.name]})")
        self.source.depth -= 1
        for target in targets:
            line(f"{target} = tuple({target})")


def _format(node: low.Node) -> str:
    if not isinstance(node, low.Fixed):
        raise TypeError(f"{node.name} has no fixed width")
    return node.format


def _fixed_tails(nodes: tuple[low.Node, ...], start: int) -> list[low.TailNode]:
    """The tails from `start` on that are fixed, wanted whole and taken as they are (no UUID, no enum)."""
    tails: list[low.TailNode] = []
    for node in nodes[start:]:
        whole = (
            isinstance(node, low.TailNode)
            and isinstance(node.inner, low.Fixed)
            and node.inner.format != "16s"
            and node.needs == struct.calcsize(">" + node.inner.format)
        )
        if not whole:
            break
        tails.append(node)  # type: ignore[arg-type]  # `whole` says that it is a TailNode
    return tails


def decoder_source(
    cls: type[Command], *, view: bool = False, most_elements: int | None = None
) -> tuple[str, dict[str, Any]]:
    """Source and constants of `decode(b, v, o, e) -> cls`; with `view`, for a `b` that is a memoryview."""
    source = Source()
    reader = Reader(source, "bytes(b[{}:{}])" if view else "b[{}:{}]", "o", most_elements)
    values = reader.nodes(low.lower(cls.parts), body=True)
    reader.end()
    source.line(f"return {reader._make(cls, values)}")
    return source.text("def decode(b, v, o, e):"), source.constants


def frame_decoder_source(cls: type[Command]) -> tuple[str, dict[str, Any]]:
    """Source and constants of `decode(b) -> cls`, for one whole frame in bytes or a bytearray.

    The header is read together with the first fields, and compared when all is read.
    """
    source = Source()
    reader = Reader(source, "b[{}:{}]", "")
    reader.run = [("i", "code"), ("i", "length")]
    values = reader.nodes(low.lower(cls.parts), body=True)
    reader.end()
    reader.refuse(f"length != e - 8 or code != {cls.code}")
    source.line(f"return {reader._make(cls, values)}")
    head = ["    e = len(b)"]
    if reader.views == 1:
        source.lines = [line.replace("v[", "memoryview(b)[") for line in source.lines]
    elif reader.views:
        head.append("    v = memoryview(b)")
    return source.text("\n".join(["def decode(b):", *head])), source.constants


class Joined(NamedTuple):
    """A block and its end that are read as one value, where the end has `alike` as the block has it, `sized` is the
    size of the block's data, and the end has no data of its own.

    `made` is a subclass of `end` that carries the data of `block`. The block has two fields, `alike` and data.
    """

    block: type[Command]
    end: type[Command]
    made: type[Command]
    alike: str
    sized: str

    def layout(self, size: int) -> tuple[struct.Struct, tuple[bytes, ...]]:
        """Both frames as one row, for blocks with data of `size` bytes: fields as they are on the wire, in order.

        Fields that are the same in all rows come together, as bytes; also returns these.
        """
        block, end = low.lower(self.block.parts), low.lower(self.end.parts)
        head = struct.calcsize(">" + "".join(_format(node) for node in block if not isinstance(node, low.Remainder)))
        fields: list[tuple[str, int | None]] = [("i", self.block.code), ("i", head + size)]
        fields += [(f"{size}s", None) if isinstance(node, low.Remainder) else (_format(node), None) for node in block]
        tail: list[tuple[str, int | None]] = []
        for node in map(_present, end):
            if isinstance(node, low.Data):
                tail.append(("i", 0))
            else:
                tail.append((_format(node), size if node.name == self.sized else None))
        fields += [("i", self.end.code), ("i", struct.calcsize(">" + "".join(code for code, _ in tail))), *tail]
        layout, same = ">", []
        for is_known, group in groupby(fields, key=lambda field: field[1] is not None):
            known = list(group)
            codes = "".join(code for code, _ in known)
            if is_known:
                same.append(struct.pack(">" + codes, *(value for _, value in known)))
                codes = f"{len(same[-1])}s"
            layout += codes
        return struct.Struct(layout), tuple(same)


def frames_source(
    often: tuple[type[Command], ...],
    *,
    joined: Joined | None = None,
    in_rows: type[Command] | None = None,
    view: bool = False,
) -> tuple[str, dict[str, Any]]:
    """Source and constants of `frames(b, v, f, end, limit, decoders, slow, out, times, heavy) -> position`: frames one
    after another.

    It appends to `out` the command of every whole frame between `f` and `end` and returns where it stopped: at a frame
    that is incomplete, at a frame whose body is longer than `limit`, when the iterator `times` ends, or after a frame
    of more than `heavy` bytes that has other fields than payload and so takes long to decode. Frequent commands are
    decoded in place, header and first fields in one read, as long as they have the form that current peers send; all
    others through `decoders`. With `joined`, a block directly followed by its end, both complete and of one writer, is
    one value. Several of `in_rows`, which has only fields of a fixed width, are one `Rows`. What these refuse goes to
    `slow(b, v, code, start, end)`, which raises the error.
    """
    source = Source()
    line = source.line
    refusals = source.constant(REFUSALS, "REFUSALS")
    short = source.constant(Short, "SHORT")
    header, _ = source.struct("iI", "read")  # a negative length is a very long one, as it is for the reference
    line("last = end - 8")
    line("long = end - f > limit  # else no frame that has come whole is too long")
    line("for _ in times:")
    source.depth += 1
    line("if f > last: break")
    if often:
        line("low = b[f + 3]")
        line("try:")
        source.depth += 1
    for cls in often:
        nodes = tuple(_present(node) for node in low.lower(cls.parts))
        reader = Reader(source, "bytes(b[{}:{}])" if view else "b[{}:{}]", "f")
        reader.run = [("i", "code"), ("I", "length")]
        known = f"e > end or long and length > limit or code != {cls.code}"
        reader.after_flush = ["e = f + 8 + length", f"if {known}: raise {short}"]
        line(f"if low == {cls.code & 0xFF}:")
        source.depth += 1
        if cls is in_rows:
            _rows(source, cls)
        values = reader.nodes(nodes, body=True)
        reader.end()
        if joined is not None and cls is joined.block:
            _join(source, joined, values, reader.read[joined.alike])
        line(f"out.append({reader._make(cls, values)})")
        if any(isinstance(node, low.Text) for node in nodes):
            line("if e - f > heavy: f = e; break")
        line("f = e")
        line("continue")
        source.depth -= 1
    if often:
        source.depth -= 1
        line(f"except {refusals}: pass")
    line(f"code, length = {header}(b, f)")
    line("e = f + 8 + length")
    line("if e > end or long and length > limit: break")
    line("try: out.append(decoders[code](b, v, f + 8, e))")
    line(f"except {refusals}: out.append(slow(b, v, code, f + 8, e))")
    line("if e - f > heavy: f = e; break")
    line("f = e")
    source.depth -= 1
    line("return f")
    return source.text("def frames(b, v, f, end, limit, decoders, slow, out, times, heavy):"), source.constants


def _rows(source: Source, cls: type[Command]) -> None:
    """Emits the look at the frames from `f` on: are there several of them, as today's peers send them?"""
    fields = "".join(_format(_present(node)) for node in low.lower(cls.parts))
    layout = struct.Struct(">8x" + fields)
    size = layout.size
    if size % 8:
        raise TypeError(f"{cls.type_name} does not end where an int64 does")
    head = source.constant(int.from_bytes(struct.pack(">ii", cls.code, size - 8), sys.byteorder), "HEAD")
    unpack = source.constant(layout.iter_unpack, "UNPACK")
    line = source.line
    line(f"if end - f >= {2 * size} and limit >= {size - 8}:")
    source.depth += 1
    line(f"n = {source.constant(run_length, 'RUN_LENGTH')}(v, f, end, {size}, {head})")
    line("if n > 1:")
    source.depth += 1
    line(f"e = f + n * {size}")
    line(f"out.append({source.constant(Rows, 'ROWS')}({unpack}(v[f:e])))")
    line("f = e")
    line("continue")
    source.depth -= 2


def _join(source: Source, joined: Joined, block: dict[str, str], alike: str) -> None:
    """Emits the look at the frame behind a block at `f`, which ends at `e`: the end of it, and nothing but?"""
    ahead = Reader(source, "", "e")
    ahead.run = [("i", "code"), ("i", "size")]
    for node in map(_present, low.lower(joined.end.parts)):
        ahead.fixed("i" if isinstance(node, low.Data) else _format(node))
    names = dict(zip((part.names[0] for part in joined.end.parts), (name for _, name in ahead.run[2:]), strict=True))
    own_data = next(node.name for node in low.lower(joined.end.parts) if isinstance(node, low.Data))
    bytes_ = struct.calcsize(">" + "".join(code for code, _ in ahead.run))
    line = source.line
    line(f"if e + {bytes_} <= end:")
    source.depth += 1
    ahead.flush()
    whole = f"{names[own_data]} == 0 and {names[joined.sized]} == len({block[own_data]})"
    known = f"code == {joined.end.code} and size == {bytes_ - 8} <= limit"
    line(f"if {known} and {whole} and {names[joined.alike]} == {alike}:")
    source.depth += 1
    values = {**names, **block}
    made = source.constant(joined.made, joined.made.__name__)
    line(f"out.append({made}({', '.join(values[name] for name in joined.made.__struct_fields__)}))")
    line(f"f = e + {bytes_}")
    line("continue")
    source.depth -= 2


def _present(node: low.Node) -> low.Node:
    """The node of a tail that is there."""
    return node.inner if isinstance(node, low.TailNode) and isinstance(node.inner, low.Fixed) else node
