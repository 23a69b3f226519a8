"""What a cluster in one process and one of several processes have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from segstore.server.cluster.settings import ClusterSettings
from segstore.server.controller import Controller
from segstore.server.controller.state import State, image, recovered
from segstore.server.durable import DirectoryDamaged, Durability
from segstore.server.faults import Faults
from segstore.server.node import SegmentStoreServer

if TYPE_CHECKING:
    from segstore.server.control_api import ControlApi


def controller_state(durability: Durability) -> State:
    """What an open directory has of the controller; its snapshots keep that from now on. Raises `DirectoryDamaged`."""
    try:
        state = recovered(durability.controller_image, durability.controller_operations)
    except ValueError as error:
        raise DirectoryDamaged(durability.path, durability.path, f"the controller's state: {error}") from error
    durability.controller_image, durability.controller_operations = b"", []
    durability.controller_state = lambda: image(state)
    return state


async def control_api(
    settings: ClusterSettings,
    stores: Sequence[SegmentStoreServer],
    faults: Faults | None,
    controller: Callable[[], Controller | None],
    **more: Any,
) -> ControlApi | None:
    """The control API, listening; None where settings have no port for it. more: of `Controlled`. Raises as it does."""
    if settings.http_port is None:
        return None
    from segstore.server.control_api import ControlApi, Controlled  # a web library, for who asks for it

    controlled = Controlled(stores, faults, controller, data=settings.data, **more)
    made = ControlApi(
        controlled,
        settings.store.host,
        settings.http_port,
        names=[settings.public_host],
        token_file=settings.http_token_file,
    )
    await made.start()
    return made


def close_connections(stores: Iterable[SegmentStoreServer], why: str) -> None:
    """Nothing can be made durable any more, so nobody is told anything any more."""
    for store in stores:
        for connection in tuple(store.hub.connections):
            connection.failed(why)
