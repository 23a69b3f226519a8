"""The intermediate form: plain facts, in wire order, about every command."""

import struct
from collections.abc import Iterator

from segstore.wire import COMMANDS, Command
from segstore.wire.schema import lowering as low
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
