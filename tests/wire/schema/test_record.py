"""The fields of records, in wire order."""

import struct
from collections.abc import Iterator

from segstore.wire import COMMANDS, Command
from segstore.wire.schema import FieldType, Nested, Rows, types
from tests.looped import looped

CLASSES = looped("cls", COMMANDS.values())


def every_field(parts: tuple[FieldType, ...]) -> Iterator[FieldType]:
    for part in parts:
        yield part
        match part:
            case types.Tail(inner=inner) | types.Counted(element=inner):
                yield from every_field((inner,))
            case Nested(parts=inside) | Rows(columns=inside):
                yield from every_field(inside)


@CLASSES
def test_the_least_that_an_element_takes_is_what_its_fields_take(cls: type[Command]) -> None:
    """The count of a list is checked against `smallest`: too large would refuse frames, too small waste memory."""

    def least(node: FieldType) -> int:
        match node:
            case types.Fixed():
                return struct.calcsize(">" + node.format)
            case types.Text():
                return 2
            case types.EnumCode() | types.Marker() | types.Counted() | types.Blob(optional=False):
                return 4
            case types.SizedData():
                return 8
            case Nested():
                return sum(map(least, node.parts))
            case types.Rest() | types.Zeros() | types.Tail() | types.Blob():
                return 0
        raise TypeError(type(node).__name__)

    for node in every_field(cls.parts):
        if isinstance(node, types.Counted):
            assert node.smallest == least(node.element) > 0
        if isinstance(node, Rows):
            assert node.smallest == sum(map(least, node.columns)) > 0
