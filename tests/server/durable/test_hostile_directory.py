"""Forged snapshots: each is refused as damaged, in bounded time and memory."""

import asyncio
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segstore.server.durable import snapshot, verify
from segstore.server.durable.chunk_files import BlockCache
from tests.server.durable.support import checkpoint, running, write

NAME = "scope/stream/0.#epoch.0"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The records of a real snapshot, as plain values."""
    path = tmp_path_factory.mktemp("whole") / "data"

    async def fill() -> None:
        async with running(path, crash=True) as (durability, store):
            store.create_segment(NAME, now_ms=1)
            write(store, NAME, bytes(20_000))
            await checkpoint(durability)

    asyncio.run(fill())
    assert verify(path).faults == []
    (file,) = path.glob("snapshot-*")
    data, at, found = file.read_bytes(), 8, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        found.append(msgspec.msgpack.decode(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


def image(*parts: bytes) -> bytes:
    return b"SEGSNAP1" + b"".join(len(part).to_bytes(4) + part for part in parts)


def read_image(data: bytes) -> None:
    snapshot.read(data, Path("/nowhere"), BlockCache(0))


ODD = st.sampled_from(
    [None, True, "", "x" * 70_000, b"", bytes(16), bytes(17), [], [[]], {}, 1.5, -1, 0, 1, 1 << 31, 1 << 32, 1 << 63]
)


@given(st.data())
@settings(max_examples=150)
def test_a_snapshot_with_odd_values_in_any_place_is_read_or_refused(records: list[Any], data: st.DataObject) -> None:
    made = [msgspec.msgpack.decode(msgspec.msgpack.encode(record)) for record in records]
    for _ in range(data.draw(st.integers(1, 3))):
        inside: Any = made
        while True:
            at = data.draw(st.integers(0, len(inside) - 1))
            if not isinstance(inside[at], list) or not inside[at] or data.draw(st.integers(0, 4)) == 0:
                break
            inside = inside[at]
        inside[at] = deepcopy(data.draw(ODD))
    with suppress(ValueError):
        read_image(image(*map(msgspec.msgpack.encode, made)))
