"""Memory accounting for the controller's state.

A stream, reader group or table is charged the size of its operations, and measured again once the charge has doubled;
so the amortised cost of an operation is proportional to its size. Deletion releases everything except the name, if its
segment numbers must not be used again. Invariant: only growth is refused, and before it starts.
"""

from __future__ import annotations

from typing import Final

import msgspec

from segstore.server.controller.errors import MemoryFull
from segstore.server.controller.state import operations as op
from segstore.server.controller.state.state import State
from segstore.server.store import MemoryAccount, StoreFull, name_bytes

_ENCODER: Final = msgspec.msgpack.Encoder()
_FACTOR: Final = 6
"""Approximate ratio of a value's memory to its encoded size."""
_OBJECT_BYTES: Final = 2_000
_SLACK_BYTES: Final = 64 * 1024


class StateMemory:
    """Charges `account` for `state`, including its initial contents."""

    def __init__(self, account: MemoryAccount, state: State) -> None:
        self.account = account
        self._state = state
        self._charged: dict[tuple[str, str, str], int] = {}
        self._measured_again_at: dict[tuple[str, str, str], int] = {}
        self._numbers = 0
        for scope, held in state.scopes.items():
            self._charge(("scopes", scope, ""), 0)
            for kind in ("streams", "reader_groups", "tables"):
                for name in getattr(held, kind):
                    self._charge((kind, scope, name), 0)
        for name in state.numbers:
            self.account.charge(name_bytes(name))
        self._numbers = len(state.numbers)

    def release(self) -> None:
        """Releases all charged memory, because the state is about to be replaced."""
        self.account.charge(-sum(self._charged.values()) - sum(map(name_bytes, self._state.numbers)))

    def check(self, request_bytes: int) -> None:
        """Raises `MemoryFull` for a request that would make the state grow beyond the limit."""
        try:
            self.account.check(_OBJECT_BYTES + _FACTOR * request_bytes)
        except StoreFull as error:
            raise MemoryFull(error.used, error.limit) from error

    def applied(self, operation: op.Operation) -> None:
        """Charges for an applied operation."""
        match operation:
            case op.StreamOperation():
                key = "streams", operation.scope, operation.stream
            case op.ReaderGroupSet() | op.ReaderGroupDeleted():
                key = "reader_groups", operation.scope, operation.name
            case op.TableCreated() | op.TableDeleted():
                key = "tables", operation.scope, operation.name
            case _:
                key = "scopes", operation.scope, ""
        self._charge(key, _FACTOR * len(op.encode(operation)))
        if len(self._state.numbers) > self._numbers:
            self._numbers += 1
            self.account.charge(name_bytes("/".join(key[1:])))

    def _charge(self, key: tuple[str, str, str], size: int) -> None:
        """Charges `size` more for an object, or its measured size; releases a deleted object."""
        kind, scope, name = key
        held = self._state.scopes.get(scope)
        thing = held if held is None or kind == "scopes" else getattr(held, kind).get(name)
        before = self._charged.pop(key, 0)
        if thing is None:
            self._measured_again_at.pop(key, None)
            self.account.charge(-before)
            return
        now = before + size
        if now >= self._measured_again_at.get(key, 0):
            encoded = b"" if kind == "scopes" else _ENCODER.encode(thing)
            now = _OBJECT_BYTES + _FACTOR * (len(encoded) + len(name))
            self._measured_again_at[key] = 2 * now + _SLACK_BYTES
        self._charged[key] = now
        self.account.charge(now - before)
