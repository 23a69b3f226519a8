"""Reader groups in the controller's messages: their configurations, and the calls about them.

Follows `ModelHelper` and `ControllerImpl` (Pravega's client).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from segstore.wire.controller_api import messages as m
from segstore.wire.reader_groups import RETENTIONS, Cuts, GroupConfig


def group_to_message(scope: str, group: str, config: GroupConfig) -> Any:
    return m.ReaderGroupConfiguration(
        scope=scope,
        readerGroupName=group,
        groupRefreshTimeMillis=config.refresh_ms,
        automaticCheckpointIntervalMillis=config.checkpoint_ms,
        maxOutstandingCheckpointRequest=config.most_checkpoints,
        retentionType=RETENTIONS.index(config.retention),
        generation=config.generation,
        readerGroupId=str(config.id),
        startingStreamCuts=[_cut(*each) for each in config.starts.items()],
        endingStreamCuts=[_cut(*each) for each in config.ends.items()],
    )


def group_from_message(message: Any) -> GroupConfig:
    """Raises ValueError for values that no group's configuration has."""
    if not 0 <= message.retentionType < len(RETENTIONS):
        raise ValueError(f"{message.retentionType} is no type of retention")
    return GroupConfig(
        _cuts(message.startingStreamCuts),
        _cuts(message.endingStreamCuts),
        message.groupRefreshTimeMillis,
        message.automaticCheckpointIntervalMillis,
        message.maxOutstandingCheckpointRequest,
        RETENTIONS[message.retentionType],
        message.generation,
        UUID(message.readerGroupId),
    )


def _cut(name: str, cut: Mapping[int, int]) -> Any:
    scope, _, stream = name.partition("/")
    return m.StreamCut(streamInfo=m.StreamInfo(scope=scope, stream=stream), cut=cut)


def _cuts(messages: Iterable[Any]) -> Cuts:
    return {f"{message.streamInfo.scope}/{message.streamInfo.stream}": dict(message.cut) for message in messages}
