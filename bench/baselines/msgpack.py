"""msgspec's msgpack for values of the same shape: what a codec in C makes of them, in a format of its own.

Each command becomes a struct of the same fields, sent as an array behind an integer tag; one decoder takes them all.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from types import GenericAlias
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from segstore.wire import Buffer, Command, Record

__all__ = ["Msgpack"]


class Msgpack:
    """Encoder and decoder for the commands of these classes."""

    def __init__(self, classes: Sequence[type[Command]]) -> None:
        self._twins: dict[type[Record], Any] = {}
        for cls in classes:
            self._twin(cls, tag=cls.code)
        union = functools.reduce(operator.or_, (self._twins[cls] for cls in classes))
        self.encode = msgspec.msgpack.Encoder().encode
        self.decode = msgspec.msgpack.Decoder(union).decode

    def twin(self, value: Any) -> Any:
        """The value that stands for a command here."""
        if isinstance(value, Record):
            fields = {name: self.twin(getattr(value, name)) for name in value.__struct_fields__}
            return self._twins[type(value)](**fields)
        if isinstance(value, tuple):
            return tuple(map(self.twin, value))
        return bytes(value) if isinstance(value, (bytearray, memoryview)) else value

    def _twin(self, cls: type[Record], tag: int | None = None) -> Any:
        if cls not in self._twins:
            fields = [(name, self._type(get_type_hints(cls)[name])) for name in cls.__struct_fields__]
            self._twins[cls] = msgspec.defstruct(
                f"{cls.__name__}Twin", fields, tag=tag, array_like=True, frozen=True, gc=False
            )
        return self._twins[cls]

    def _type(self, hint: Any) -> Any:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        if hint == Buffer:
            return bytes
        if isinstance(hint, type) and issubclass(hint, Record):
            return self._twin(hint)
        if get_origin(hint) in (tuple, Sequence):
            return GenericAlias(tuple, (self._type(get_args(hint)[0]), ...))
        if get_origin(hint) is Union:
            raise TypeError(f"{hint} has no twin")
        return hint
