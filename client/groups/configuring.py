"""The first state of a group, and how its configuration is replaced.

A replacement is announced in the state, made at the controller, whose generation decides between concurrent
replacements, and then written as a first state of the new generation. A client that finds an announcement that was not
followed by that state writes it. Follows `ReaderGroupImpl.resetReaderGroup` and
`ReaderGroupStateManager.updateConfigIfNeeded` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from segstore.client.controller import Cluster, Controller, CutError, name_of
from segstore.client.errors import ConditionFailed, RequestRejected
from segstore.client.groups.positions import cuts_of, read_before
from segstore.client.groups.shared import SharedGroup
from segstore.client.groups.state import Draft
from segstore.wire.names import MAX_INT64
from segstore.wire.reader_groups import Cuts, GroupConfig, InitialState, UpdatingConfig

_END: Final = -1


async def initial_state(controller: Controller, config: GroupConfig) -> InitialState:
    """Returns the first state of a group with a configuration. Raises NoSuchStream."""
    starts: dict[str, int] = {}
    for stream, cut in config.starts.items():
        starts |= _named(stream, cut or await controller.head(*stream.split("/", 1)))
    ends: dict[str, int] = {}
    for stream, cut in config.ends.items():
        ends |= {name: MAX_INT64 if at == _END else at for name, at in _named(stream, cut).items()}
    return InitialState(config, starts, ends)


def _named(stream: str, cut: Mapping[int, int]) -> dict[str, int]:
    scope, _, name = stream.partition("/")
    return {name_of(scope, name, number): offset for number, offset in cut.items()}


async def check_ends(controller: Controller, starts: Cuts, ends: Cuts) -> None:
    """Raises CutError for an end that lies before the start of its stream, or is no cut of it."""
    for stream, end in ends.items():
        scope, _, name = stream.partition("/")
        start = starts[stream] or await controller.head(scope, name)
        behind = [
            segment for segment in start.keys() & end.keys() if end[segment] != _END and start[segment] > end[segment]
        ]
        try:
            if end and not behind:
                await controller.segments_between(scope, name, start, end)
        except RequestRejected as cause:
            raise CutError(f"{dict(end)} is no cut of {stream} behind the start {dict(start)}", stream) from cause
        if behind:
            raise CutError(f"the group's end {dict(end)} in {stream} lies before its start {dict(start)}", stream)


async def _last_cuts(cluster: Cluster, shared: SharedGroup, config: GroupConfig) -> Cuts:
    """Returns the starts for a reset to the last checkpoint, or else the group's starts.

    They include the ends of segments that were read before it and that other segments wait for, and of segments that
    were read to the ends of the group. Left out are streams that were read to ends of their own.
    """
    last = shared.state.checkpoints.last
    if last is None:
        return config.starts
    before = await read_before(cluster, last, shared.state.ends)
    starts = {stream: dict(cut) for stream, cut in cuts_of(before | dict(last)).items()}
    if not starts:
        raise ConditionFailed(
            f"the streams of {shared.group} were read to their ends before its last checkpoint: give other positions",
            **shared.facts,
        )
    return starts


async def reset_group(cluster: Cluster, shared: SharedGroup, cuts: Cuts | None, until: Cuts | None) -> None:
    """Puts a group at other positions.

    cuts: None for its last checkpoint, or else its start. until: the ends; None keeps its ends.
    """
    while True:
        config = (await shared.fetch()).config
        assert config is not None
        starts = await _last_cuts(cluster, shared, config) if cuts is None else cuts
        ends = {stream: cut for stream, cut in (config.ends if until is None else until).items() if stream in starts}
        if cuts is not None:
            await check_ends(cluster.controller, starts, ends)

        def announce(draft: Draft, config: GroupConfig = config) -> bool:
            current = draft.state.config == config
            if current:
                draft.add(UpdatingConfig(True))
            return current

        if not await shared.change(announce):
            continue
        requested = config._replace(starts=starts, ends=ends)
        try:
            generation = await cluster.controller.update_reader_group(shared.scope, shared.name, requested)
        except RequestRejected as rejected:
            if rejected.details.get("status") != "INVALID_CONFIG":
                raise
            await renew(cluster, shared)  # another client has replaced it
            continue
        initial = await initial_state(cluster.controller, requested._replace(generation=generation))
        await shared.change(lambda draft, initial=initial: draft.add(initial))  # type: ignore[misc]
        return


async def renew(cluster: Cluster, shared: SharedGroup) -> None:
    """Writes the first state of the configuration that the controller has, if that is newer than the group's."""
    config = await cluster.controller.reader_group_config(shared.scope, shared.name)
    initial = await initial_state(cluster.controller, config)

    def begin(draft: Draft) -> None:
        current = draft.state.config
        if current is None or current.generation < config.generation:
            draft.add(initial)

    await shared.change(begin)
