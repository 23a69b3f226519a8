"""Routes for reader groups: their readers, and their positions and lags in the segments.

A group keeps its state in a stream (clients in Java) or in a table (clients in Rust and Python).
Only stores know the tables of groups: tables in other processes are not listed, but can be queried by name.

Invariant: at most `_MOST_MEASURED` segments are measured.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from typing import Final, Literal

from fastapi import APIRouter

from segstore.server.control_api.contents import models as m
from segstore.server.control_api.contents.asking import After, Limit, answers, named
from segstore.server.control_api.controlled import Controlled, Here
from segstore.server.control_api.problems import shown
from segstore.server.control_api.steering import Group, Scope, controller_of
from segstore.server.controller import Controller, SharedState
from segstore.server.controller.state import READER_GROUP_PREFIX, TABLE_SUFFIX, State, history
from segstore.wire import StreamSegmentInfo
from segstore.wire.names import SegmentName, is_reader_group_table

_MOST_MEASURED: Final = 500
_MOST_LATER: Final = 10_000


router = APIRouter(prefix="/v1", tags=["groups"])


@router.get("/groups/{scope}", summary="Reader groups of a scope")
async def list_groups(controlled: Here, scope: Scope, after: After = "", limit: Limit = 100) -> m.GroupPage:
    controller = controller_of(controlled)

    def names(token: str) -> tuple[list[str], str]:
        return controller.streams.names(scope, token, lambda name: name.startswith(READER_GROUP_PREFIX))

    streams, _ = named(names, f"{READER_GROUP_PREFIX}{after}" if after else "", limit + 1)
    kinds: dict[str, Literal["table", "stream"]] = {
        name.removeprefix(READER_GROUP_PREFIX): "stream" for name in streams
    }
    kinds |= dict.fromkeys(await _tables(controlled, controller.state, scope, after, limit + 1), "table")
    page = sorted(kinds)
    groups = [m.GroupSummary(scope=scope, group=shown(group), kind=kinds[group]) for group in page[:limit]]
    return m.GroupPage(groups=groups, next=shown(page[limit - 1]) if len(page) > limit else None)


@router.get("/groups/{scope}/{group}", summary="A reader group: its readers, positions and lag")
async def get_group(controlled: Here, scope: Scope, group: Group) -> m.GroupDetails:
    controller = controller_of(controlled)
    return await _details(controller, scope, group, await controller.reader_groups.shared_state(scope, group))


async def _tables(controlled: Controlled, state: State, scope: str, after: str, limit: int) -> list[str]:
    """Returns the names of groups after `after`, from the tables in this process's stores."""
    groups, prefix = set(), f"{scope}/"
    async for segment in controlled.segments():
        if segment.name.startswith(prefix) and is_reader_group_table(segment.name):
            group = segment.name[len(prefix) :].rpartition("/")[0].removesuffix(TABLE_SUFFIX)
            if group > after and "/" not in group and group not in state.scope(scope).tables:
                groups.add(group)
    return sorted(groups)[:limit]


# --- positions and lag ------------------------------------------------------------------------------------------------


async def _details(controller: Controller, scope: str, group: str, state: SharedState) -> m.GroupDetails:
    places: dict[str, tuple[str | None, int | None]] = {name: (None, at) for name, at in state.unassigned.items()}
    for reader, segments in state.readers.items():
        places |= {name: (reader, at) for name, at in segments.items()}
    for name in await _later(controller, [*places, *state.future], state.ends):
        places.setdefault(name, (None, None))
    listed = sorted(places)[:_MOST_MEASURED]
    infos = await answers(controller.segments.segment_info, listed)
    shown_segments = [_segment(name, *places[name], infos.get(name), state.ends.get(name)) for name in listed]
    lags: dict[str | None, int] = defaultdict(int)
    for name, segment in zip(listed, shown_segments, strict=True):
        lags[places[name][0]] += segment.lag_bytes or 0
    readers = sorted(state.readers)
    return m.GroupDetails(
        scope=scope,
        group=group,
        kind=state.kind,
        streams=[shown(stream) for stream in state.streams],
        readers=[
            m.ReaderView(reader=shown(reader), segments=len(state.readers[reader]), lag_bytes=lags[reader])
            for reader in readers
        ],
        reader_count=len(readers),
        segments=shown_segments,
        segment_count=len(places),
        lag_bytes=sum(lags.values()),
    )


def _segment(
    name: str, reader: str | None, offset: int | None, info: StreamSegmentInfo | None, ends: int | None
) -> m.GroupSegment:
    """ends: where the group ends; None if it does not."""
    status: Literal["later", "unassigned", "assigned"] = "unassigned" if reader is None else "assigned"
    if offset is None:
        status = "later"
    elif offset < 0:  # by which readers in Java mean the segment's end
        offset = None if info is None else info.write_offset
    lag = None
    if info is not None:
        end = info.write_offset if ends is None else min(ends, info.write_offset)
        lag = max(0, end - max(offset or 0, info.start_offset))
    return m.GroupSegment(
        name=shown(name),
        reader=None if reader is None else shown(reader),
        status=status,
        offset=offset,
        length=None if info is None else info.write_offset,
        lag_bytes=lag,
    )


async def _later(controller: Controller, names: Iterable[str], ends: Container[str]) -> set[str]:
    """Returns the segments of `names` and all segments that follow them in their streams.

    ends: the segments in which the group ends.
    """
    seen = set(names)
    ahead = [name for name in seen if name not in ends]
    while ahead and len(seen) < _MOST_LATER:
        await asyncio.sleep(0)
        more = [successor for successor in _successors(controller.state, ahead.pop()) if successor not in seen]
        seen |= set(more)
        ahead += [name for name in more if name not in ends]
    return seen


def _successors(state: State, name: str) -> Iterator[str]:
    parsed = SegmentName.parse(name)
    stream = state.find_stream(parsed.scope or "", parsed.stream or "")
    segment = None if stream is None else history.find_segment(stream.epochs, parsed.segment_id or 0)
    if stream is not None and segment is not None:
        sealed = history.sealed_in(stream.epochs, segment)
        if sealed is not None:
            yield from map(stream.segment_name, stream.epochs[sealed].overlapping(segment.start, segment.end))
