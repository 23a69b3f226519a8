"""The wire package's error tree.

Every failure to read or write the protocol is an error of this tree, sorted by cause:

    WireError
    ├── FrameTooLarge    a frame, received or to be written, exceeds the limit
    ├── Truncated        a field needs more bytes than its frame has left
    ├── UnknownCommand   a type code that no command has
    ├── BadField         a value that its field cannot hold
    └── OutOfOrder       a command that the state of the connection does not allow

The message of an error is one sentence. Its facts are also attributes, so callers never parse messages. Text from peers
and files is escaped and shortened in the message, and unchanged in the attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from segstore.wire.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST: Final = 600


class WireError(Exception):
    """Root of all errors of the wire.

    Attributes (None where they do not apply):
        code: type code of the frame, as on the wire.
        type_name: name of the command, such as ``READ_SEGMENT``.
        field: dotted path of the field, such as ``table_entries.entries[3].key.data``.
        offset: bytes from the start of the frame, header included, at which the field starts.
        limit: the maximum allowed or available, in the unit of ``actual``.
        actual: the value found.
        decoded: commands that the same call to ``FrameDecoder.feed`` decoded before the error; they arrived intact, and
            the caller should process them.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        type_name: str | None = None,
        field: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
        actual: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.type_name = type_name
        self.field = field
        self.offset = offset
        self.limit = limit
        self.actual = actual
        self.decoded: Sequence[Any] = ()

    def __str__(self) -> str:
        where = self.type_name or (f"type {self.code}" if self.code is not None else "")
        if self.field:
            where = f"{where}.{self.field}" if where else self.field
        if self.offset is not None:
            where = f"{where} at byte {self.offset}" if where else f"at byte {self.offset}"
        return printable(f"{where}: {self.message}" if where else self.message, _LONGEST)

    def facts(self) -> dict[str, Any]:
        """The attributes that are set, for logs and for JSON."""
        names = ("code", "type_name", "field", "offset", "limit", "actual")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class FrameTooLarge(WireError):
    """A frame is longer than the limit; raised on its header, before any of its body is buffered."""


class Truncated(WireError):
    """A field needs ``actual`` bytes, but only ``limit`` are left in the frame."""


class UnknownCommand(WireError):
    """The type code is not a supported command's."""


class BadField(WireError):
    """A value that its field cannot hold: a negative length, malformed UTF-8, an integer out of range."""


class OutOfOrder(WireError):
    """A well-formed command that the state of its connection does not allow."""
