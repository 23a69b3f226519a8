"""Annotations for optional trailing fields of commands, as the reference reads them.

Two rules exist. Most numeric tails are read only if all their bytes are left; a partial number is ignored. Texts, and a
few numbers, are read if any byte is left; a partial value is refused. Source: the `readFrom`s of `WireCommands.java`.
"""

from typing import Annotated

from segstore.wire.schema import types

NO_REQUEST = -1
NO_OFFSET = -1

Int64Tail = Annotated[int, types.Tail(types.Int64, -1, partial="ignored", needs=8)]
ZeroTail = Annotated[int, types.Tail(types.Int64, 0, partial="ignored", needs=8)]
Int32Tail = Annotated[int, types.Tail(types.Int32, 0, partial="ignored", needs=4)]
FlagTail = Annotated[bool, types.Tail(types.Bool, False, partial="ignored", needs=1)]
EagerInt64 = Annotated[int, types.Tail(types.Int64, -1, partial="refused")]
StackTrace = Annotated[str, types.Tail(types.JavaUTF, "", partial="refused")]
