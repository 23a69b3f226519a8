"""Reader groups and their streams, as tests of them begin."""

from typing import Any

from segstore.client.client import Client
from segstore.client.groups import ReaderGroup
from segstore.client.groups.shared import SharedGroup

__all__ = ["KEYS", "fill", "group", "shared"]

KEYS = 8


async def fill(pravega: Client, count: int, *, segments: int = 2, stream: str = "s", start: int = 0) -> None:
    """Writes numbered events, and makes the stream before that if there is none."""
    await pravega.controller.create_scope("a")
    await pravega.controller.create_stream("a", stream, segments=segments)
    async with pravega.event_writer("a", stream) as writer:
        for number in range(start, start + count):
            await writer.submit(b"k%d:%d" % (number % KEYS, number), routing_key=f"k{number % KEYS}")


def group(pravega: Client, name: str = "g", **more: Any) -> ReaderGroup:
    options: dict[str, Any] = {"streams": ["s"], "refresh_ms": 20} | more
    return pravega.reader_group("a", name, **options)


def shared(pravega: Client) -> SharedGroup:
    """The state of the group "g"."""
    return SharedGroup(pravega._cluster("READ"), pravega.locations(), "a", "g")
