"""Command declarations: each command class is its own schema. Also holds the registry of all commands.

A command is declared once, as a class whose annotations name each field, its Python type and its wire type:

    @command(21, "SEGMENT_CREATED", reply=True)
    class SegmentCreated(Command):
        request_id: Int64
        segment: Text

The immutable value (a `msgspec.Struct`), `SegmentCreated.schema` (a `construct.Struct`) and, through its fields
`SegmentCreated.parts`, everything that reads, writes or describes a command derive from this. Attributes are in the
order of the reference's classes; a declaration states a different wire order.

Invariant: `parse` and `build`, which walk the construct tree, are the specification. They raise only `WireError`,
whatever the bytes. Source: `WireCommands.java`, `WireCommandType.java`.
"""

from __future__ import annotations

import io
import uuid
from inspect import get_annotations
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import construct

from segstore.wire.errors import BadField, WireError
from segstore.wire.schema import types
from segstore.wire.schema.plain import from_plain, to_plain
from segstore.wire.schema.record import Nested, R, Rows, WireStruct, fields_of, struct_of, value_of
from segstore.wire.schema.types import BodyStream, Buffer, FieldType

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

COMMANDS: dict[int, type[Command]] = {}
"""Type code → class, for every command; includes EVENT (0), although it only occurs nested."""

WITH_PREVIOUS = object()
"""Annotation: the attribute is part of the wire type of the attribute before it."""

Text = Annotated[str, types.JavaUTF]
Token = Annotated[str, types.JavaUTF, types.Secret]
Flag = Annotated[bool, types.Bool]
Int8 = Annotated[int, types.Int8]
Int32 = Annotated[int, types.Int32]
Int64 = Annotated[int, types.Int64]
Id = Annotated[uuid.UUID, types.Uuid]
Data = Annotated[Buffer, types.Blob()]


class Command(WireStruct, frozen=True, gc=False):
    """Base class of all commands.

    Class attributes:
        code: type code on the wire. type_name: the reference's name, such as ``READ_SEGMENT``.
        schema: the body as a `construct.Struct`, fields in wire order.
        is_request, is_reply, is_failure: as the reference classifies it.
    """

    code: ClassVar[int]
    type_name: ClassVar[str]
    is_request: ClassVar[bool] = False
    is_reply: ClassVar[bool] = False
    is_failure: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values: buffers as hex, UUIDs as text, enums by name."""
        return to_plain(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; null text is "" and null data is empty. Raises BadField."""
        try:
            return from_plain(cls, fields)
        except BadField as error:
            error.type_name = cls.type_name
            error.code = cls.code if cls is not Unknown else None
            if error.field in cls.secrets:
                error.actual = None
            raise


class Unknown(Command, frozen=True, gc=False):
    """A frame with an unknown type code, kept whole where traffic is only observed."""

    type_code: int
    data: Buffer

    type_name: ClassVar[str] = "UNKNOWN"
    parts: ClassVar[tuple[FieldType, ...]] = (types.Int32.named("type_code"), types.Rest().named("data"))
    secrets: ClassVar[frozenset[str]] = frozenset()

    @property
    def code(self) -> int:  # type: ignore[override]  # the one class whose code is per value
        return self.type_code


C = TypeVar("C", bound=Command)


def command(
    code: int,
    type_name: str,
    *,
    request: bool = False,
    reply: bool = False,
    failure: bool = False,
    wire_order: tuple[str, ...] = (),
) -> Callable[[type[C]], type[C]]:
    """Declares a command: sets the class's code, name and schema, and registers it in `COMMANDS`.

    wire_order: the attributes in wire order, if it differs from the order of the class.
    """

    def declare(cls: type[C]) -> type[C]:
        if code in COMMANDS:
            raise TypeError(f"type code {code} is taken by {COMMANDS[code].__name__}")
        _layout(cls, wire_order)
        cls.code = code
        cls.type_name = type_name
        cls.is_request = request
        cls.is_reply = reply or failure
        cls.is_failure = failure
        COMMANDS[code] = cls
        return cls

    return declare


def record(cls: type[R]) -> type[R]:
    """Declares a structure that occurs inside commands."""
    _layout(cls, ())
    return cls


def _layout(cls: type[WireStruct], wire_order: tuple[str, ...]) -> None:
    # Not `get_type_hints`, which would evaluate what `Command` and `WireStruct` annotate for each of their subclasses.
    bases = [base for base in reversed(cls.__mro__) if issubclass(base, WireStruct) and base.__struct_fields__]
    hints = {name: hint for base in bases for name, hint in get_annotations(base, eval_str=True).items()}
    notes = {name: hints[name].__metadata__ for name in cls.__struct_fields__}
    order = wire_order or cls.__struct_fields__
    if sorted(order) != sorted(cls.__struct_fields__):
        raise TypeError(f"{cls.__name__}: wire_order does not name each attribute once")
    cls.secrets = frozenset(name for name, note in notes.items() if types.Secret in note)
    parts: list[FieldType] = []
    for name in order:
        wire, before = notes[name][0], parts[-1] if parts else None
        if wire is WITH_PREVIOUS:
            parts[-1] = parts[-1].with_trailer(name)
        elif not isinstance(wire, types.Column):
            parts.append(wire.named(name))
        elif isinstance(before, Rows):
            parts[-1] = Rows((*before.columns, wire.element.named(name)), before.smallest + wire.smallest)
        else:
            parts.append(Rows((wire.element.named(name),), wire.smallest))
    cls.parts = tuple(parts)
    cls.schema = struct_of(cls.parts)


def _context(*, parsing: bool) -> Any:
    """Creates a context without the self-references of construct's entry points, which would keep each frame and its
    values alive until the next garbage collection."""
    return construct.Container(_parsing=parsing, _building=not parsing, _sizing=False, _params=None, _root=None)


def parse(cls: type[C], body: Buffer | BodyStream, form: Nested | None = None) -> C:
    """Reads a body through the construct tree. Raises WireError with offsets counted from the frame's header.

    form: another form of the class's body, such as an older version's. A caller that passes a stream finds the number
    of unread bytes in its `left`.
    """
    stream = body if isinstance(body, BodyStream) else BodyStream(body)
    try:
        parts, struct = (cls.parts, cls.schema) if form is None else (form.parts, form.struct)
        return value_of(cls, parts, struct._parse(stream, _context(parsing=True), "(parsing)"))
    except WireError as error:
        _place(error, cls)
        raise


def build(value: Command, form: Nested | None = None) -> bytes:
    """Writes a body through the construct tree. Raises BadField, naming the field and its value.

    form: another form of the class's body, such as an older version's.
    """
    cls = type(value)
    parts, struct = (cls.parts, cls.schema) if form is None else (form.parts, form.struct)
    stream = io.BytesIO()
    try:
        struct._build(fields_of(value, parts), stream, _context(parsing=False), "(building)")
    except WireError as error:
        _place(error, cls)
        raise
    return stream.getvalue()


def _place(error: WireError, cls: type[Command]) -> None:
    error.code = cls.code
    error.type_name = cls.type_name
    if error.offset is not None:
        error.offset += 8
    if error.field in cls.secrets and not isinstance(error.actual, int):
        error.actual = None  # facts go to logs
