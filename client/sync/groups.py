"""The synchronous classes of `segstore.client.groups`.

Written by tools/make_sync.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self

from segstore.client import GroupReader as AsyncGroupReader
from segstore.client import ReaderGroup as AsyncReaderGroup
from segstore.client.controller import StreamCut
from segstore.client.groups import Checkpoint, GroupEnd, GroupEvent, GroupListener, GroupMetrics, GroupStart
from segstore.client.sync.proxies import EnteredProxy, Iteration, step
from segstore.wire.reader_groups import GroupConfig


class ReaderGroup(EnteredProxy[AsyncReaderGroup]):
    """A reader group. Use with `with`, or `open` and `close`.

    Attributes:
        scope, name: the group's scope and name.
    """

    @property
    def scope(self) -> str:
        return self._inner.scope

    @property
    def name(self) -> str:
        return self._inner.name

    def open(self) -> None:
        """Opens the group; creates it if it does not exist and streams were given.

        Raises NoSuchReaderGroup if it does not exist and no streams were given, or if its table was deleted and its
        store has not yet released the name (which takes Pravega's stores minutes); NoSuchStream; CutError for a start
        or an end that leaves out keys or is behind the end of a segment, or an end before the start;
        ConditionFailed if a key-value table has the name of its table; EntryRefused for too many segments in a table;
        and the errors of controller calls and requests.
        """
        self._lease.run(self._inner.open)

    def reader(self, name: str, *, listener: GroupListener | None = None) -> GroupReader:
        """Returns an unopened reader; its name must be unique in the group while it is online.

        listener: called with each `GroupChange` of the reader, inside `read`, between two events.
        """
        return GroupReader(self._lease.call(self._inner.reader, name, listener=listener), self._lease)

    def readers(self) -> list[str]:
        """Returns the names of all online readers, including other clients' readers."""
        return self._lease.run(self._inner.readers)

    def reader_offline(self, name: str, positions: Mapping[str, int] | None = None) -> bool:
        """Takes a failed reader offline; returns whether it was online.

        Other readers continue its segments from the positions that it recorded (a reader in Java: at its last
        checkpoint), or from `positions` (segment → offset) if given. If the reader is still alive, it ends with
        ReaderOffline.
        """
        return self._lease.run(self._inner.reader_offline, name, positions)

    def config(self) -> GroupConfig:
        """Returns the group's configuration."""
        return self._lease.run(self._inner.config)

    def streams(self) -> list[str]:
        """Returns the group's streams, as "scope/stream"."""
        return self._lease.run(self._inner.streams)

    def cuts(self) -> dict[str, StreamCut]:
        """Returns the recorded positions of the group: "scope/stream" → segment id → offset.

        The result can be passed as `from_` of another group.
        """
        return self._lease.run(self._inner.cuts)

    def metrics(self) -> GroupMetrics:
        """Returns how far the recorded positions are behind the ends of the streams, by segment.

        Readers record their positions every `refresh_ms`.
        """
        return self._lease.run(self._inner.metrics)

    def reset(self, from_: GroupStart | None = None, *, to: GroupEnd | None = None) -> None:
        """Puts the group at other positions of its streams, which ends its readers with ReaderOffline.

        from_: as of a new group; None for the last checkpoint that all readers have taken, or else for the group's
        start. to: as of a new group, given with `from_`; None keeps the group's ends, {} removes them. Raises CutError
        as `open`, and ConditionFailed for a group whose state is in a table, and if the streams were read to their ends
        before the last checkpoint.
        """
        self._lease.run(self._inner.reset, from_, to=to)

    def update_retention(self, cuts: Mapping[str, Mapping[int, int]]) -> None:
        """Reports that the group needs nothing before these cuts, by stream, if its retention is "manual".

        Raises RequestRejected for other cuts than the stream's, or of another retention (SUBSCRIBER_NOT_FOUND).
        """
        self._lease.run(self._inner.update_retention, cuts)

    def checkpoint(self, name: str | None = None, *, timeout_ms: float = 60000) -> Checkpoint:
        """Returns positions of all readers, each taken between two events, inside the reader's next `read`.

        Readers notice it within `refresh_ms`; their listeners are called with `CheckpointTaken`. name: None for a
        random name. Raises RequestTimedOut, which names the readers that did not take it, ConditionFailed if the name
        is in progress or was taken last, if too many checkpoints are in progress, or if the group's state is in a
        table, and the errors of requests.
        """
        return self._lease.run(self._inner.checkpoint, name, timeout_ms=timeout_ms)

    def checkpoints(self, every_s: float, *, timeout_ms: float = 60000) -> Iterator[Checkpoint]:
        """Yields a checkpoint, and another each time that `every_s` seconds have passed. Raises as `checkpoint`."""
        return Iteration(self._lease.call(self._inner.checkpoints, every_s, timeout_ms=timeout_ms), self._lease)

    def delete(self) -> None:
        """Deletes the group, which ends its readers. Raises NoSuchReaderGroup."""
        self._lease.run(self._inner.delete)

    def close(self) -> None:
        """Releases this object's resources; the group and its readers continue. Can be called twice."""
        self._lease.run(self._inner.aclose)


class GroupReader(EnteredProxy[AsyncGroupReader]):
    """A reader of a group. Use with `with` and `for`, or `open`, `read` and `close`.

    Attributes:
        name: the reader's name, unique in its group while it is online.
        truncated_bytes: number of bytes truncated before they could be read.
    """

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def truncated_bytes(self) -> int:
        return self._lease.call(lambda: self._inner.truncated_bytes)

    @property
    def segments(self) -> list[str]:
        """The segments that this reader is reading."""
        return self._lease.call(lambda: self._inner.segments)

    @property
    def positions(self) -> dict[str, int]:
        """The position after the last handled event of each segment being read."""
        return self._lease.call(lambda: self._inner.positions)

    def open(self) -> None:
        """Joins the group and acquires segments. Raises ReaderExists, NoSuchReaderGroup, and the errors of requests.

        If cancelled, it leaves the group again, within `close_timeout_ms`.
        """
        self._lease.run(self._inner.open)

    def read(self) -> GroupEvent | None:
        """Returns the next event; None when all streams of the group were read to their ends, or to the group's.

        Marks the previous event as handled, then calls the listener. Only one call may be pending.

        Raises ReaderOffline if another client took this reader offline, NoSuchReaderGroup, TokenRefused,
        RetriesExhausted, ProtocolViolation, Closed, and the errors of `SegmentReader.read`.
        """
        return self._lease.run(self._inner.read)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GroupEvent:
        return step(self._inner, self._lease)

    def reader_offline(self, *, handled: bool = True) -> None:
        """Returns the reader's segments to the group and closes it; a no-op if it is already offline.

        handled: whether the last event counts as handled; if not, it will be read again. Raises RequestTimedOut and the
        errors of requests; the group then still counts the reader as online. Cancelling does not stop it.
        """
        self._lease.run(self._inner.reader_offline, handled=handled)

    def close(self) -> None:
        """Same as `reader_offline`."""
        self._lease.run(self._inner.aclose)

    def abort(self) -> dict[str, int]:
        """Stops reading without notifying the group, like a crash; returns its positions.

        Its segments become available to other readers after `ReaderGroup.reader_offline`.
        """
        return self._lease.run(self._inner.abort)
