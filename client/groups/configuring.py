"""The first state of a group, and how its configuration is replaced.

A replacement is announced in the state, made at the controller, whose generation decides between several, and then
written as a first state of the new generation. A client that finds an announcement that was not followed by that state
writes it. Follows `ReaderGroupImpl.resetReaderGroup` and `ReaderGroupStateManager.updateConfigIfNeeded` (Pravega's
client).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from segstore.client.cluster import Cluster
from segstore.client.controller import Controller, name_of
from segstore.client.errors import RequestRejected
from segstore.client.groups.positions import cuts_of
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


async def reset_group(cluster: Cluster, shared: SharedGroup, cuts: Cuts | None) -> None:
    """Puts a group at other positions. cuts: None for its last checkpoint, or its start if there is none."""
    while True:
        state = await shared.fetch()
        config, last = state.config, state.checkpoints.last
        assert config is not None
        starts = cuts
        if starts is None and last is not None:
            starts = {stream: dict(cut) for stream, cut in cuts_of(last).items()}

        def announce(draft: Draft, config: GroupConfig = config) -> bool:
            current = draft.state.config == config
            if current:
                draft.add(UpdatingConfig(True))
            return current

        if not await shared.change(announce):
            continue
        asked = config if starts is None else config._replace(starts=starts)
        try:
            generation = await cluster.controller.update_reader_group(shared.scope, shared.name, asked)
        except RequestRejected as rejected:
            if rejected.details.get("status") != "INVALID_CONFIG":
                raise
            await renew(cluster, shared)  # another client has replaced it
            continue
        initial = await initial_state(cluster.controller, asked._replace(generation=generation))
        await shared.change(lambda draft, initial=initial: draft.add(initial))  # type: ignore[misc]
        return


async def renew(cluster: Cluster, shared: SharedGroup) -> None:
    """Writes the first state of the configuration that the controller has, if that is newer than the group's."""
    config = await cluster.controller.reader_group_config(shared.scope, shared.name)
    initial = await initial_state(cluster.controller, config)

    def begin(draft: Draft) -> None:
        found = draft.state.config
        if found is None or found.generation < config.generation:
            draft.add(initial)

    await shared.change(begin)
