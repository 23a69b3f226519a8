"""The rules of the protocol, checked frame by frame on one connection."""

from __future__ import annotations

from collections.abc import Sequence

from segstore.wire.errors import WireError
from segstore.wire.history.facts import Broken, Finding, Key, Place, Waiting
from segstore.wire.protocol import Requests
from segstore.wire.schema import Command
from segstore.wire.trace import Record


class ProtocolCheck:
    """Checks the frames of one connection. is_whole: whether its opening was recorded."""

    def __init__(self, key: Key, *, is_whole: bool) -> None:
        self._key = key
        self._is_whole = is_whole
        self._is_closed = False

    def closed(self) -> None:
        """Takes the close of the connection."""
        self._is_closed = True

    def loose_bytes(self, place: Place, record: Record) -> list[Broken]:
        """Takes bytes that form no frame."""
        return [Broken("frames-only", self._key, (place,), f"{len(record.data)} bytes form no frame")]

    def undecodable(self, place: Place, record: Record, error: WireError) -> list[Broken]:
        """Takes a frame that does not decode."""
        return [Broken("decodes", self._key, (place,), str(error))]

    def request(self, place: Place, command: Command, waiting: Requests[Waiting]) -> list[Finding]:
        """Takes a frame from the client. waiting: the requests before it that wait."""
        return []

    def reply(self, place: Place, command: Command, answered: Sequence[Waiting]) -> list[Finding]:
        """Takes a frame from the store. answered: the requests that it answers, oldest first."""
        return []
