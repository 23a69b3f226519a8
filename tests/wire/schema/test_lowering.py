"""The intermediate form: plain facts, in wire order, about every command."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

from segstore.wire import COMMANDS, Command, ConditionalAppend, DataAppended, Event, TableKey
from segstore.wire.schema import lowering as low
from segstore.wire.schema import schema, types
from tests.looped import looped

CLASSES = looped("cls", COMMANDS.values())


def every_node(nodes: tuple[low.SchemaNode, ...]) -> Iterator[low.SchemaNode]:
    for node in nodes:
        yield node
        for name in node.__struct_fields__:
            inner = getattr(node, name)
            if isinstance(inner, low.SchemaNode):
                yield from every_node((inner,))
            elif isinstance(inner, tuple) and inner and isinstance(inner[0], low.SchemaNode):
                yield from every_node(inner)


@CLASSES
def test_nodes_hold_plain_facts_only(cls: type[Command]) -> None:
    plain = (str, int, bool, type(None), low.SchemaNode, enum.IntEnum)
    for node in every_node(low.lower(cls.parts)):
        for name in node.__struct_fields__:
            fact = getattr(node, name)
            if isinstance(fact, tuple):
                assert all(isinstance(each, plain) for each in fact)
            elif isinstance(fact, type):
                assert issubclass(fact, (schema.WireStruct, enum.IntEnum))
            else:
                assert isinstance(fact, plain), f"{node}.{name}"


@CLASSES
def test_formats_are_those_that_struct_reads(cls: type[Command]) -> None:
    for node in every_node(low.lower(cls.parts)):
        if isinstance(node, low.Fixed):
            assert node.format in types.FIXED_FORMATS.values()
            struct.calcsize(">" + node.format)


@CLASSES
def test_the_least_that_an_element_takes_is_what_its_nodes_take(cls: type[Command]) -> None:
    """The count of a list is checked against `smallest`: too large would refuse frames, too small waste memory."""

    def least(node: low.SchemaNode) -> int:
        match node:
            case low.Fixed():
                return struct.calcsize(">" + node.format)
            case low.Text():
                return 2
            case low.Number() | low.Constant() | low.Many() | low.Data(optional=False):
                return 4
            case low.Sized():
                return 8
            case low.Structure():
                return sum(map(least, node.nodes))
            case low.Remainder() | low.ZeroRun() | low.TailNode() | low.Data():
                return 0
        raise TypeError(type(node).__name__)

    for node in every_node(low.lower(cls.parts)):
        if isinstance(node, low.Many):
            assert node.smallest == least(node.element) > 0
        if isinstance(node, low.Table):
            assert node.smallest == sum(map(least, node.columns)) > 0


@CLASSES
def test_tails_that_are_ignored_when_partial_need_their_whole_width(cls: type[Command]) -> None:
    for node in every_node(low.lower(cls.parts)):
        if isinstance(node, low.TailNode) and node.needs > 1:
            width = 4 if isinstance(node.inner, low.Number) else struct.calcsize(">" + node.inner.format)
            assert node.needs == width


def test_nodes_stand_in_the_order_of_the_wire() -> None:
    names = [node.name for node in low.lower(DataAppended.parts)]
    assert names[:2] == ["writer_id", "event_number"]
    assert names.index("request_id") == 3
    assert DataAppended.__struct_fields__[0] == "request_id"


def test_a_nested_event_differs_from_an_event() -> None:
    assert [type(node) for node in low.lower(Event.parts)] == [low.Remainder]
    nested = next(node for node in low.lower(ConditionalAppend.parts) if isinstance(node, low.Structure))
    assert [type(node) for node in nested.nodes] == [low.Constant, low.Data]


def test_a_key_and_its_version_are_one_node() -> None:
    (node,) = low.lower(TableKey.parts)
    assert node == low.Sized("data", "key_version", "q", -(1 << 63))
