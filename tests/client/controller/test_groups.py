"""Calls about reader groups: their configurations to messages and back, and what the controller refuses."""

from __future__ import annotations

from uuid import UUID

import pytest

from segstore.client.client import Client
from segstore.client.controller.groups import group_from_message, group_to_message
from segstore.client.errors import NoSuchReaderGroup, NoSuchStream, RequestRejected
from segstore.wire.reader_groups import GroupConfig

CONFIG = GroupConfig(
    {"a/s": {0: 5}, "b/t": {}}, {"a/s": {0: 9}}, 1, 2, 3, "manual", generation=4, id=UUID(int=0x12345678 << 90)
)


def test_configurations_survive() -> None:
    message = group_to_message("a", "g", CONFIG)
    assert (message.scope, message.readerGroupName) == ("a", "g")
    assert group_from_message(message) == CONFIG
    message.retentionType = 3
    with pytest.raises(ValueError, match="3 is no type of retention"):
        group_from_message(message)


@pytest.mark.usefixtures("grpc_runs")
async def test_a_group_is_created_once_updated_and_deleted(pravega: Client) -> None:
    controller = pravega.controller
    with pytest.raises(NoSuchStream):
        await controller.create_reader_group("a", "g", CONFIG)
    await controller.create_scope("a")
    await controller.create_stream("a", "s")
    config = CONFIG._replace(starts={"a/s": {0: 0}})
    held = await controller.create_reader_group("a", "g", config)
    assert held == config._replace(generation=0)
    assert await controller.create_reader_group("a", "g", CONFIG._replace(id=UUID(int=1))) == held
    assert await controller.reader_group_config("a", "g") == held
    assert await controller.update_reader_group("a", "g", held._replace(refresh_ms=7)) == 1
    with pytest.raises(RequestRejected, match="reader group a/g: the controller reports INVALID_CONFIG"):
        await controller.update_reader_group("a", "g", held)
    await controller.update_subscriber_cut("a", "s", "a/g", held._replace(generation=1), {0: 0})
    with pytest.raises(RequestRejected, match="GENERATION_MISMATCH"):
        await controller.update_subscriber_cut("a", "s", "a/g", held, {0: 0})
    await controller.delete_reader_group("a", "g", held.id)
    for call in (
        controller.reader_group_config("a", "g"),
        controller.update_reader_group("a", "g", held),
        controller.delete_reader_group("a", "g", held.id),
    ):
        with pytest.raises(NoSuchReaderGroup, match="reader group a/g does not exist"):
            await call
