"""Persistence of the controller's state in a data directory: snapshots and recovery.

Invariant: `recovered(image(state), operations)` is the state to which the operations were applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from segstore.server.controller.errors import ControllerError
from segstore.server.controller.state.operations import decode
from segstore.server.controller.state.state import State

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(State)


def image(state: State) -> bytes:
    return _ENCODER.encode(state)


def recovered(image: bytes, operations: Iterable[bytes]) -> State:
    """Returns the state of an image (b"" for an empty state) after encoded operations.

    Raises `ValueError` for an invalid image, or an operation that is invalid in its state.
    """
    try:
        state = _DECODER.decode(image) if image else State()
        for each in operations:
            decode(each).apply(state)
    except (ControllerError, KeyError) as error:
        raise ValueError(f"an operation is invalid in its state: {error}") from error
    return state
