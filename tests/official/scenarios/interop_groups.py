"""A reader group of the official client that another client continues."""

from __future__ import annotations

from pravega_client import StreamManager

from common import Reading, apart, texts


async def read_some(uri: str, scope: str, group: str, stream: str, reader: str, count: int) -> list[str]:
    """Join or make a group, read so many events or a few more, go offline."""
    made = StreamManager(uri)
    reading = Reading(made.create_reader_group(group, scope, stream).create_reader(reader))
    await reading.until(count)
    reading.reader.reader_offline()
    await apart()
    return texts(reading.events)
