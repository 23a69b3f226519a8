"""Ids chosen by a peer so that their numbers have equal hashes: no table may use such numbers as keys.

The tests do not measure time. They inspect the reachable tables of this process and the hashes of their keys.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.store import AttributeUpdate, BadAttribute, Container
from segstore.server.store.attributes import UpdateType
from segstore.tap import Tap
from segstore.wire import AppendSetup, SegmentAttributeUpdated, UpdateSegmentAttribute
from tests.looped import looped
from tests.server.support import HELLO, SEGMENT, Peer, append, create, set_up

MANY = 600
COLLIDING = [UUID(int=7 + number * sys.hash_info.modulus) for number in range(MANY)]
OTHER = "scope/stream/1.#epoch.0"


def crowded_tables() -> Iterator[tuple[type, Any]]:
    """Tables of this process with hundreds of keys, most of which have the same hash: owner and one key of each."""
    for owner in gc.get_objects():
        for table in gc.get_referents(owner):  # the collector does not track tables of plain values itself
            if isinstance(table, dict | set) and len(table) > MANY // 2:
                (_, most), *_ = Counter(map(hash, list(table))).most_common(1)
                if most > len(table) // 2:
                    yield type(owner), next(iter(table))


def test_the_ids_collide_and_a_table_that_is_keyed_by_them_is_found() -> None:
    assert len(set(map(hash, COLLIDING))) == 1
    assert len({hash(each.int) for each in COLLIDING}) == 1
    for keys in (COLLIDING, [each.int for each in COLLIDING], [("segment", each.int) for each in COLLIDING]):
        held = [dict.fromkeys(keys)]
        assert list(crowded_tables())
        del held


@looped("watched", [True, False])
async def test_writers_and_attributes_of_a_store_do_not_collide(watched: bool) -> None:
    async with MockSegmentStore(watched=watched, http_port=0) as store, await Peer.connect(store) as peer:
        await peer.ask(HELLO, create(), create(OTHER, 2))
        for each in COLLIDING:
            peer.send(set_up(SEGMENT, each), append(1, b"event", each))
        assert len([each for each in await peer.receive(2 * MANY) if isinstance(each, AppendSetup)]) == MANY
        for each in COLLIDING:
            peer.send(UpdateSegmentAttribute(3, OTHER, each, 5, -(2**63), ""))
        assert await peer.receive(MANY) == [SegmentAttributeUpdated(3, True)] * MANY
        segment = store.segments[OTHER]
        assert [segment.attribute(each) for each in COLLIDING] == [5] * MANY
        assert list(crowded_tables()) == []


async def test_attributes_that_a_data_directory_has_do_not_collide(grpc_runs: None, tmp_path: Path) -> None:
    async with MockCluster(data=tmp_path) as mock:
        mock.stores[0].store.create_segment(SEGMENT, now_ms=1)
        for each in COLLIDING:
            mock.stores[0].store.setup_append(SEGMENT, each, now_ms=1)
    async with MockCluster(data=tmp_path) as mock:
        assert [each for each, _ in mock.stores[0].store.segment(SEGMENT).attribute_values()][-MANY:] == COLLIDING
        assert list(crowded_tables()) == []


class Compared(UUID):
    """A UUID that counts how often one is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Compared.compared += 1
        return super().__eq__(other)

    __hash__ = UUID.__hash__


def test_updates_of_one_request_do_not_collide() -> None:
    container = Container()
    container.create_segment(SEGMENT, now_ms=1)
    missing = [AttributeUpdate(Compared(int=each.int), UpdateType.REPLACE_IF_EQUALS, 1, 2) for each in COLLIDING]
    Compared.compared = 0
    with pytest.raises(BadAttribute):
        container.update_attributes(SEGMENT, missing, now_ms=1)
    assert Compared.compared <= 10 * MANY
    assert container.segments[SEGMENT].attribute_count() >= MANY


async def test_writers_do_not_collide_in_a_tap_that_refuses_their_appends() -> None:
    async with MockSegmentStore(watched=False) as store, Tap(store=f"{store.host}:{store.port}") as tap:
        tap.faults.add("type = APPEND_BLOCK_END", do="SegmentIsSealed")
        ((host, port),) = tap.addresses.values()
        async with Peer(*await asyncio.open_connection(host, port)) as peer:
            await peer.ask(HELLO, create())
            for each in COLLIDING:
                peer.send(set_up(SEGMENT, each), append(1, b"event", each))
            assert len(await peer.receive(2 * MANY)) == 2 * MANY
            assert list(crowded_tables()) == []
