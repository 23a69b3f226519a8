"""The official client's part in reader groups that it shares with another client."""

from __future__ import annotations

from typing import Any

from pravega_client import StreamManager

from common import Reading, apart, attempt, say, say_and_wait, texts


async def read_some(uri: str, scope: str, group: str, stream: str, reader: str, count: int) -> list[str]:
    """Join or make a group, read so many events or a few more, go offline."""
    made = StreamManager(uri)
    reading = Reading(made.create_reader_group(group, scope, stream).create_reader(reader))
    await reading.until(count)
    reading.reader.reader_offline()
    await apart()
    return texts(reading.events)


async def read_and_stay(uri: str, scope: str, group: str, stream: str, reader: str, count: int) -> None:
    """Read so many events, say which, and read no more until somebody ends this process."""
    made = StreamManager(uri)
    reading = Reading(made.create_reader_group(group, scope, stream).create_reader(reader))
    await reading.until(count)
    say_and_wait(" ".join(texts(reading.events)))


async def put_offline(uri: str, scope: str, group: str, stream: str, gone: str, count: int) -> dict[str, Any]:
    """Put a reader offline that is gone, read its share."""
    made = StreamManager(uri)
    shared = made.create_reader_group(group, scope, stream)
    put = attempt(lambda: shared.reader_offline(gone))
    again = attempt(lambda: shared.create_reader(gone).reader_offline())
    await apart()
    reading = Reading(shared.create_reader("official"))
    await reading.until(count)
    cut = {str(key): value for key, value in shared.get_streamcut().get_segment_offset_map().items()}
    reading.reader.reader_offline()
    await apart()
    return {"put": put, "again": again, "events": texts(reading.events), "cut": cut}


async def doubled(uri: str, scope: str, group: str, stream: str, reader: str) -> dict[str, Any]:
    """Try to come online under a name that is online."""
    made = StreamManager(uri)
    shared = made.create_reader_group(group, scope, stream)
    say("joined")
    return attempt(lambda: shared.create_reader(reader))
