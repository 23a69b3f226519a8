"""Writers' timestamps, each with the writer's position at that time.

Invariant: neither the time nor the position of a writer goes back. Follows `PersistentStreamBase.noteWriterMark`.
`watermarks` combines the timestamps for readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from segstore.server.controller.errors import NotFound, TooMany
from segstore.server.controller.state import Core, Due
from segstore.server.controller.state import operations as op

NoteResult = Literal["SUCCESS", "INVALID_TIME", "INVALID_POSITION"]


class Writers:
    def __init__(self, core: Core) -> None:
        self._core = core

    def note(self, scope: str, stream: str, writer: str, timestamp: int, position: Mapping[int, int]) -> NoteResult:
        """Records that all events of this writer up to `position` have timestamps up to `timestamp`, unless one of them
        goes back; sets the stream's timer for watermarks. Raises `TooMany` for a writer beyond the limit.
        """
        core, writers = self._core, self._core.state.stream(scope, stream).writers
        core.check_writer(writer)
        mark, limit = writers.get(writer), core.config.max_writers
        if mark is None:
            if len(writers) >= limit:
                raise TooMany("writers that note times", len(writers) + 1, limit)
        elif mark.timestamp > timestamp:
            return "INVALID_TIME"
        elif any(offset < mark.position.get(segment, offset) for segment, offset in position.items()):
            return "INVALID_POSITION"
        core.record(op.WriterNoted(scope, stream, writer, timestamp, dict(position)))
        core.schedule_once(core.config.watermark_every_ms, Due.WATERMARK, scope, stream)
        return "SUCCESS"

    def remove(self, scope: str, stream: str, writer: str) -> None:
        if writer not in self._core.state.stream(scope, stream).writers:
            raise NotFound("writer", f"{writer} of stream {scope}/{stream}")
        self._core.record(op.WriterGone(scope, stream, writer))
