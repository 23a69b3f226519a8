"""Streams: created, updated, truncated, sealed, deleted, listed; and queries about their segments.

Invariant: segments are created in the segment store before the state names them, and deleted there before the state
drops them; a call that fails in between can be repeated. A stream created again under an old name numbers its segments
after the old segments, because segment names cannot be used again.

Follows `StreamMetadataTasks`, `ControllerService`, `AbstractStreamMetadataStore`. Deliberate differences: by default
the stream of watermarks (`_MARK…`) is created when a client first asks for its segments, and is not listed; a stream
cannot be created without segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from segstore.server.controller import errors
from segstore.server.controller.policies import Cut, ScalingType, StreamConfig
from segstore.server.controller.state import MARK_PREFIX, Core, Stream, StreamSegment, history, require
from segstore.server.controller.state import operations as op
from segstore.server.controller.streams.scaling import Scaling
from segstore.server.controller.streams.transactions import Transactions
from segstore.wire.endpoint import Endpoint
from segstore.wire.hashing import consistent_hash, java_hash_code, murmur3_128_low
from segstore.wire.names import is_stream_name, split_segment_id
from segstore.wire.schema import utf16

_TAG_PARTS: Final = 25
_TAG_SEED: Final = java_hash_code("StreamTags")


def page(
    size: int,
    names: Iterable[str],
    token: str,
    order: Callable[[str], Any] = str,
    listed: Callable[[str], bool] = bool,
    accepts: Callable[[str], bool] = bool,
) -> tuple[list[str], str]:
    """Returns the first `size` listed and accepted names after `token`, in order, and the token of the next page.

    `accepts`, which may be expensive, is called only for names that may fit. A listing ends with an empty page. Names
    created or deleted between two pages may or may not be listed, others exactly once.
    """
    rest = sorted(filter(listed, names), key=order)
    first = bisect_right(rest, order(token), key=order) if token else 0
    accepted = list(islice(filter(accepts, rest[first:]), size))
    return accepted, accepted[-1] if accepted else token


def _tag_order(stream: str) -> tuple[int, str]:
    """Returns the sort key for the streams of a tag: Pravega stores them in 25 parts, by a hash of their names."""
    return consistent_hash(murmur3_128_low(utf16(stream), _TAG_SEED), _TAG_PARTS), stream


class Streams:
    def __init__(self, core: Core, scaling: Scaling, transactions: Transactions) -> None:
        self._core = core
        self._scaling = scaling
        self._transactions = transactions

    # Changes ---------------------------------------------------------------------------------------------------

    async def create(self, scope: str, stream: str, config: StreamConfig) -> None:
        if not is_stream_name(stream):
            raise errors.InvalidName("stream", stream)
        self._check_config(config)
        await self._create(scope, stream, config)
        if self._core.config.watermark_streams and not stream.startswith(MARK_PREFIX):
            await self._create_mark(scope, MARK_PREFIX + stream)

    async def _create_mark(self, scope: str, stream: str) -> None:
        """Creates a stream of watermarks, unless it exists. Its name is valid if its stream's name is."""
        with suppress(errors.AlreadyExists):
            await self._create(scope, stream, StreamConfig())

    async def _create(self, scope: str, stream: str, config: StreamConfig) -> None:
        core = self._core
        async with core.lock(scope, stream):
            if stream in core.state.scope(scope).streams:
                raise errors.AlreadyExists("stream", f"{scope}/{stream}")
            number = core.state.numbers.get(f"{scope}/{stream}", 0)
            now_ms = core.now_ms()
            for segment in history.first_epoch(config.scaling.min_segments, number, now_ms).segments:
                await core.segments.create_segment(segment.name(scope, stream), config.scaling, config.rollover_bytes)
            core.state.scope(scope)  # it may have been deleted while the store worked
            core.record(op.StreamCreated(scope, stream, config, number, now_ms))

    async def update(self, scope: str, name: str, config: StreamConfig) -> None:
        """Changes a stream's configuration; scales at once to a fixed or a higher minimum number of segments."""
        self._check_config(config)
        async with self._core.lock(scope, name):
            stream = self._unsealed(scope, name)
            await self._scaling.finish(stream)
            for segment in stream.current.segments:
                await self._core.segments.update_policy(stream.segment_name(segment), config.scaling)
            self._core.record(op.StreamUpdated(scope, name, config))
            count, wanted = len(stream.current.segments), config.scaling.min_segments
            if count < wanted or (count > wanted and config.scaling.kind is ScalingType.FIXED):
                await self._scaling.replace(stream, history.equal_ranges(wanted))

    async def truncate(self, scope: str, name: str, cut: Mapping[int, int]) -> None:
        """Truncates a stream at a cut, which must not be before the last cut."""
        async with self._core.lock(scope, name):
            stream = self._unsealed(scope, name)
            self.check_progress(stream, stream.cut, cut)
            gone = [
                segment
                for segment in history.between(stream.epochs, stream.cut, cut)
                if segment.id not in cut and segment.id not in stream.deleted
            ]
            for identifier, offset in cut.items():
                if offset > 0:
                    segment_name = stream.segment_name(stream.segment(identifier))
                    # A cut beyond the end truncates nothing, but the stream begins there, as in Pravega.
                    if offset <= await self._core.segments.segment_length(segment_name):
                        await self._core.segments.truncate_segment(segment_name, offset)
            for segment in gone:
                await self._core.segments.delete_segment(stream.segment_name(segment))
            self._core.record(op.StreamTruncated(scope, name, dict(cut), tuple(segment.id for segment in gone)))

    async def seal(self, scope: str, name: str) -> None:
        """Seals a stream; no-op if it is sealed. Open transactions are aborted."""
        async with self._core.lock(scope, name):
            stream = self._core.state.stream(scope, name)
            if stream.sealed:
                return
            await self._scaling.finish(stream)
            await self._transactions.settle(stream)
            seal = self._core.segments.seal_segment
            sizes = {segment.id: await seal(stream.segment_name(segment)) for segment in stream.current.segments}
            self._core.record(op.StreamSealed(scope, name, sizes))

    async def delete(self, scope: str, name: str) -> None:
        """Deletes a sealed stream, its segments and its watermarks."""
        async with self._core.lock(scope, name):
            stream = self._core.state.stream(scope, name)
            if not stream.sealed:
                raise errors.StreamNotSealed(stream.full_name)
            mark = self._core.state.scope(scope).streams.get(MARK_PREFIX + name)
            if mark is not None:
                await self._delete_segments(mark)
                self._core.record(op.StreamDeleted(scope, mark.name))
            await self._delete_segments(stream)
            self._core.record(op.StreamDeleted(scope, name))

    async def _delete_segments(self, stream: Stream) -> None:
        for segment in stream.all_segments():
            await self._core.segments.delete_segment(stream.segment_name(segment))

    # Queries ---------------------------------------------------------------------------------------------------

    def exists(self, scope: str, stream: str) -> bool:
        require(scope=scope, stream=stream)
        return self._core.state.find_stream(scope, stream) is not None

    def get(self, scope: str, stream: str) -> Stream:
        """Returns the stream, read-only. Raises `NotFound`."""
        return self._core.state.stream(scope, stream)

    def names(self, scope: str, token: str, accepts: Callable[[str], bool] = bool) -> tuple[list[str], str]:
        """Returns a page of the names of a scope's streams that are accepted."""
        streams, marks = self._core.state.scope(scope).streams, self._core.config.watermark_streams

        def listed(name: str) -> bool:
            return marks or not (name.startswith(MARK_PREFIX) and name.removeprefix(MARK_PREFIX) in streams)

        return page(self._core.config.page_size, streams, token, listed=listed, accepts=accepts)

    def tagged(self, scope: str, token: str, tag: str, accepts: Callable[[str], bool] = bool) -> tuple[list[str], str]:
        """Returns a page of the names of a scope's streams with a tag that are accepted, without internal streams."""
        streams = self._core.state.scope(scope).streams

        def listed(name: str) -> bool:
            return tag in streams[name].config.tags and not streams[name].is_internal

        return page(self._core.config.page_size, streams, token, _tag_order, listed, accepts)

    async def current(self, scope: str, name: str) -> list[StreamSegment]:
        """Returns the segments that take writes, by key; an empty list if the stream is sealed."""
        stream = await self._get_or_mark(scope, name)
        return [] if stream.sealed else list(stream.current.segments)

    async def head(self, scope: str, stream: str) -> Cut:
        return (await self._get_or_mark(scope, stream)).head()

    def at_epoch(self, scope: str, stream: str, epoch: int) -> list[StreamSegment]:
        """Returns the segments of an epoch, by key."""
        if epoch < 0:
            raise errors.InvalidArgument(f"epoch {epoch} is negative")
        return list(self.get(scope, stream).epoch(epoch).segments)

    async def following(self, scope: str, name: str, identifier: int) -> dict[StreamSegment, list[int]]:
        """Returns the successors of a segment, each with all its predecessors; empty at the end of a sealed stream.

        The caller may have reached the end of a segment while its epoch is about to end. A reader would take an empty
        answer for the end of the stream, so work that is sealing segments is finished first.
        """
        stream = self.get(scope, name)
        following = history.successors(stream.epochs, identifier)
        if following or stream.sealed:
            return following
        async with self._core.lock(scope, name):
            stream = self.get(scope, name)
            if not stream.sealed:
                await self._scaling.finish_due(stream)
                await self._transactions.finish_due(stream)
            return history.successors(stream.epochs, identifier)

    def between(self, scope: str, name: str, start: Mapping[int, int], end: Mapping[int, int]) -> list[StreamSegment]:
        """Returns the segments from one stream cut to another. One cut may be empty: the beginning or the end.

        A cut need not cover all keys here, and unknown segments in it are ignored.
        """
        if not start and not end:
            raise errors.InvalidArgument("one of the two stream cuts must be given")
        stream = self.get(scope, name)
        for cut in filter(None, (start, end)):
            _check_epochs(stream, cut)
            if all(history.find_segment(stream.epochs, identifier) is None for identifier in cut):
                raise errors.BrokenStreamCut(stream.full_name, "it names no segment of the stream")
        try:
            return history.between(stream.epochs, start, end)
        except ValueError as error:
            raise errors.InvalidStreamCut(stream.full_name, str(error)) from error

    def is_current(self, scope: str, name: str, identifier: int) -> bool:
        """Whether a segment takes writes."""
        stream = self.get(scope, name)
        segment = history.find_segment(stream.epochs, identifier)
        return not stream.sealed and segment is not None and stream.current.holds(segment)

    def is_cut_valid(self, scope: str, stream: str, cut: Mapping[int, int]) -> bool:
        """Whether a cut is valid: it covers all keys, in an order that can be read."""
        if not cut:
            raise errors.InvalidArgument("the stream cut is empty")
        return _why_invalid(self.get(scope, stream), cut) is None

    def endpoint(self, scope: str, stream: str, identifier: int) -> Endpoint:
        """Returns the store that owns a segment, whether or not the segment exists or could exist."""
        epoch, number = split_segment_id(identifier)
        require(scope=scope, stream=stream)
        return self._core.segments.owner_of(f"{scope}/{stream}/{number}.#epoch.{epoch}")

    def _check_config(self, config: StreamConfig) -> None:
        count = config.scaling.min_segments
        self._core.check_segments("segments of a stream", count)
        if count < 1 or config.rollover_bytes < 0:
            raise errors.InvalidArgument(
                f"no stream can have {count} segments and rollover at {config.rollover_bytes} bytes"
            )

    @staticmethod
    def check_progress(stream: Stream, earlier: Mapping[int, int], cut: Mapping[int, int]) -> None:
        """Refuses a cut that is invalid for this stream, or before the `earlier` cut."""
        if not cut:
            raise errors.InvalidArgument("the stream cut is empty")
        if (why := _why_invalid(stream, cut)) is not None:
            raise errors.InvalidStreamCut(stream.full_name, why)
        if earlier and not history.is_at_or_after(stream.epochs, cut, earlier):
            raise errors.InvalidStreamCut(stream.full_name, "it lies before the last one")

    def _unsealed(self, scope: str, name: str) -> Stream:
        stream = self._core.state.stream(scope, name)
        if stream.sealed:
            raise errors.StreamIsSealed(stream.full_name)
        return stream

    async def _get_or_mark(self, scope: str, stream: str) -> Stream:
        """Returns the stream; creates a stream of watermarks if its stream exists."""
        try:
            return self._core.state.stream(scope, stream)
        except errors.NotFound:
            about = stream.removeprefix(MARK_PREFIX)
            if about == stream or not self.exists(scope, about):
                raise
        await self._create_mark(scope, stream)
        return self._core.state.stream(scope, stream)


def _check_epochs(stream: Stream, cut: Mapping[int, int]) -> None:
    """Refuses a cut that names an unknown epoch; with `NotFound` if all are unknown."""
    named = sorted({split_segment_id(identifier)[0] for identifier in cut})
    if named[0] >= 0:
        stream.epoch(named[0])
    if named[0] < 0 or named[-1] > stream.current.number:
        raise errors.BrokenStreamCut(stream.full_name, f"not all of the epochs {named} exist")


def _why_invalid(stream: Stream, cut: Mapping[int, int]) -> str | None:
    """Returns why a cut is invalid, or None. Raises `BrokenStreamCut` for unknown, or only unreached, segments."""
    _check_epochs(stream, cut)
    for identifier in cut:
        try:
            stream.segment(identifier)
        except errors.NotFound as error:
            raise errors.BrokenStreamCut(stream.full_name, str(error)) from error
    if all(offset < 0 for offset in cut.values()):
        raise errors.BrokenStreamCut(stream.full_name, "it has reached no segment")
    return history.why_invalid(stream.epochs, cut)
