"""Containers that are lost, taken, given up and opened while a store runs, and who is woken by it; in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from segstore.server.coordination import ContainerRefused, Opened, SessionState, container_path
from segstore.server.coordination.errors import Unreachable
from segstore.server.store import Container
from tests.looped import looped
from tests.server.coordination.clusters import CONTAINERS, Cluster, opened_by_another, played, recorded
from tests.server.coordination.stores import Store
from tests.server.coordination.virtual_time import in_virtual_time, pass_time


@played(session_expired_policy="reconnect")
async def test_a_waiter_for_a_condition_is_woken_by_the_change_that_makes_it_true(cluster: Cluster) -> None:
    ownership, session = cluster.first.ownership, cluster.session_of(cluster.first)
    await opened_by_another(cluster)
    await ownership.until(lambda: not cluster.first.serves)
    await ownership.until(lambda: ownership.owns(0))
    assert not cluster.first.store.containers.keys() & {0}, "not opened yet"
    cluster.first.first_uses[0]()
    await ownership.until(lambda: cluster.first.serves == {0, 2})
    assert cluster.session_of(cluster.first) is not session
    cluster.service.cut(cluster.session_of(cluster.first).session_id)
    await ownership.until(lambda: cluster.session_of(cluster.first).state is SessionState.SUSPENDED)
    cluster.service.heal(cluster.session_of(cluster.first))
    await ownership.until(lambda: cluster.session_of(cluster.first).state is SessionState.CONNECTED)
    waiting = [asyncio.create_task(ownership.until(lambda: len(cluster.first.serves) == CONTAINERS)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await cluster.second.ownership.stop()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert [each is None for each in done] == [True, False, True]


@looped("why", ["stopped", "failed"])
@played(session_expired_policy="reconnect")
async def test_a_store_that_ends_serves_nothing_any_more_when_its_session_is_closed(cluster: Cluster, why: str) -> None:
    session, served = cluster.session_of(cluster.first), list[set[int]]()
    aclose = session.aclose

    async def watched() -> None:
        served.append(cluster.first.serves)
        await aclose()

    session.aclose = watched  # type: ignore[method-assign]
    if why == "failed":
        cluster.storage.fails = ZeroDivisionError("a defect")
        cluster.storage.fence[0]()
        await cluster.until(lambda: cluster.first.ownership.shutdown_reason is not None)
        cluster.storage.fails = None
    else:
        await cluster.first.ownership.stop()
    assert served == [set()]


@played(session_expired_policy="reconnect", preload=True, takeover_delay_ms=500)
async def test_a_refused_container_is_taken_in_turn_once_it_is_repaired(cluster: Cluster) -> None:
    loop, ownership = asyncio.get_running_loop(), cluster.first.ownership
    mended_s: list[float] = []
    await cluster.second.ownership.stop()
    await cluster.until(lambda: len(cluster.first.serves) == CONTAINERS)
    cluster.storage.damaged[0] = "it is damaged"
    ownership.prefer(0)
    ownership.prefer(3)
    cluster.storage.fence[0]()
    await cluster.until(lambda: 0 in ownership.refused)
    await pass_time(10)
    refused = cluster.storage.refused

    async def damage_of(container_id: int) -> str:
        why = await refused(container_id)
        if not why:
            mended_s.append(loop.time())
        return why

    cluster.storage.refused = damage_of  # type: ignore[method-assign]
    cluster.storage.damaged.clear()
    await cluster.until(lambda: 0 in cluster.first.serves)
    assert loop.time() - mended_s[0] >= 0.5, "others come first"
    cluster.service.delete(container_path(3), -1)
    await pass_time(0.1)
    assert 3 in cluster.first.serves, "this one it still prefers"


async def taken_after_s(cluster: Cluster, container_id: int) -> float:
    """How long it takes, in virtual time, until the first store serves a container."""
    start_s = asyncio.get_running_loop().time()
    await cluster.until(lambda: container_id in cluster.first.serves)
    return asyncio.get_running_loop().time() - start_s


@played(session_expired_policy="reconnect", rebalance=False, takeover_delay_ms=500)
async def test_a_container_whose_node_was_deleted_is_served_no_more_and_taken_in_turn(cluster: Cluster) -> None:
    await cluster.second.ownership.stop()
    cluster.expire(cluster.first)  # what it had and has again is taken in turn from then on, as any other
    await cluster.until(lambda: len(cluster.first.serves) == CONTAINERS)
    serves_when_released: list[set[int]] = []
    cluster.first.ownership._released = lambda: serves_when_released.append(cluster.first.serves)
    cluster.service.delete(container_path(0), -1)
    await pass_time(0.1)
    assert cluster.first.serves == {1, 2, 3}
    assert serves_when_released == [{1, 2, 3}]
    assert 0.4 <= await taken_after_s(cluster, 0) < 1


@played(session_expired_policy="reconnect", rebalance=False)
async def test_a_container_to_give_up_is_kept_if_the_session_ends_before(cluster: Cluster) -> None:
    cluster.first.ownership.give_up(2)
    cluster.expire(cluster.first)
    await pass_time(60)
    assert 2 in cluster.first.serves


@played(session_expired_policy="reconnect", rebalance=False, takeover_delay_ms=500)
async def test_what_another_store_had_meanwhile_is_taken_in_turn(cluster: Cluster) -> None:
    await cluster.second.ownership.stop()
    await cluster.until(lambda: len(cluster.first.serves) == CONTAINERS)
    other = await cluster.service.connect()
    cluster.expire(cluster.first)
    await other.create(container_path(0), b"other", ephemeral=True)
    await cluster.until(lambda: cluster.first.serves == {1, 2, 3})
    await pass_time(1)
    cluster.service.expire(other.session_id)
    assert 0.5 <= await taken_after_s(cluster, 0) < 1.1


@played(session_expired_policy="reconnect", rebalance=False, takeover_delay_ms=500)
async def test_a_container_is_taken_at_once_if_the_store_prefers_it_and_in_turn_if_not(cluster: Cluster) -> None:
    ownership = cluster.first.ownership
    ownership.prefer(1)
    ownership.leave(0)
    ownership.give_up(0)
    cluster.second.ownership.give_up(1)
    await cluster.until(lambda: cluster.first.serves == {1, 2})
    assert cluster.service.get(container_path(0)) is None, "no store may try it yet"
    await cluster.second.ownership.stop()
    assert 0.5 <= await taken_after_s(cluster, 3) < 3
    cluster.service.expire(cluster.session_of(cluster.first).session_id)
    assert await taken_after_s(cluster, 1) < 0.1, "it had it"


@in_virtual_time
async def test_a_store_takes_its_containers_at_once_and_others_in_turn() -> None:
    cluster = Cluster(rebalance=False)
    await cluster.first.ownership.start({1})
    assert await taken_after_s(cluster, 1) < 0.1
    await cluster.until(lambda: len(cluster.first.serves) == CONTAINERS)
    await cluster.first.ownership.stop()
    await cluster.first.ownership.stop()
    assert cluster.first.ownership.session is None
    assert cluster.first.serves == set()
    assert [cluster.service.get(container_path(each)) for each in range(CONTAINERS)] == [None] * CONTAINERS
    cluster.service.close()


@in_virtual_time
async def test_a_store_does_not_start_without_the_coordination_service() -> None:
    cluster = Cluster()
    cluster.service.pause()
    with pytest.raises(Unreachable):
        await cluster.first.ownership.start()
    assert cluster.first.ownership.session is None
    await cluster.first.ownership.stop()
    cluster.service.close()


@pytest.mark.seed("57.6")
@played(session_expired_policy="reconnect")
async def test_a_store_gives_up_the_containers_with_the_highest_numbers_above_its_share(cluster: Cluster) -> None:
    await cluster.first.ownership.stop()
    await cluster.until(lambda: cluster.second.serves == {0, 1, 2, 3})
    third = Store("third", cluster.service, cluster.storage, CONTAINERS, seed=3)
    await third.ownership.start()
    await cluster.until(lambda: third.serves == {2, 3} and cluster.second.serves == {0, 1})
    await pass_time(60)
    assert (third.serves, cluster.second.serves) == ({2, 3}, {0, 1})
    await third.ownership.stop()


@played(session_expired_policy="reconnect")
async def test_a_container_that_its_journal_lost_is_opened_again_under_the_next_epoch(cluster: Cluster) -> None:
    before, kept = cluster.first.epoch_of(0), cluster.first.epoch_of(2)
    cluster.storage.fence[0]()
    assert cluster.first.serves == {2}
    await cluster.until(lambda: cluster.first.serves == {0, 2})
    assert (cluster.first.epoch_of(0), cluster.first.epoch_of(2)) == (before + 1, kept)


@looped(("at", "changed"), [("open", False), ("epoch", False), ("epoch", True)])
def test_what_is_opened_as_the_session_ends_is_not_served_in_it(at: str, changed: bool) -> None:
    @played(session_expired_policy="shutdown" if at == "open" else "reconnect")
    async def play(cluster: Cluster) -> None:
        may, reached = asyncio.Event(), asyncio.Event()
        served_in: list[object] = []
        store, ownership = cluster.first, cluster.first.ownership
        real, real_own = getattr(cluster.storage, at), store.store.own

        async def later(*given: Any) -> Any:
            if given[0] == 0 and not may.is_set():
                reached.set()
                await may.wait()
            return 99 if changed and given[0] == 0 else await real(*given)

        def own(container_id: int, container: Container | None = None) -> Container:
            if container_id == 0:
                served_in.append(ownership.session)
            return real_own(container_id, container)

        class Unopened(dict[int, Callable[[], None]]):
            def __setitem__(self, container_id: int, first_use: Callable[[], None]) -> None:
                served_in.append(ownership.session)
                super().__setitem__(container_id, first_use)

        store.store.own, store.store.unopened = own, Unopened()  # type: ignore[method-assign]
        setattr(cluster.storage, at, later)
        if at == "open":
            cluster.storage.fence[0]()
        else:
            cluster.expire(store)
        await cluster.until(reached.is_set)
        session = cluster.session_of(store)
        may.set()
        cluster.expire(store)
        await pass_time(10)
        assert session not in served_in
        assert bool(served_in) == (at == "epoch"), "the next session may have it"

    play()


@played(session_expired_policy="reconnect")
async def test_a_container_refused_on_its_first_use_is_not_owned(cluster: Cluster) -> None:
    with recorded() as said:
        await opened_by_another(cluster)
        await cluster.until(lambda: 0 in cluster.first.first_uses)
        cluster.storage.damaged[0] = "it is damaged"
        cluster.first.first_uses[0]()
        await cluster.until(lambda: 0 in cluster.first.ownership.refused)
        assert not cluster.first.ownership.owns(0)
        assert cluster.first.first_uses == {}
        await pass_time(60)
    (line,) = [line for line in said if line.startswith("store first: container 0")]
    assert "cannot be opened: it is damaged" in line


@played(session_expired_policy="reconnect")
async def test_a_container_lost_while_it_is_opened_and_then_refused_ends_no_store(cluster: Cluster) -> None:
    may, reached = asyncio.Event(), asyncio.Event()

    async def refused(container_id: int, fenced: Callable[[], Container | None]) -> Opened:
        reached.set()
        await may.wait()
        raise ContainerRefused(container_id, "it is damaged")

    cluster.storage.damaged[0] = "it is damaged"
    cluster.storage.open = refused  # type: ignore[method-assign]
    cluster.storage.fence[0]()
    await cluster.until(reached.is_set)
    cluster.storage.fence[0]()
    may.set()
    await cluster.until(lambda: 0 in cluster.first.ownership.refused)
    await pass_time(1)
    assert cluster.first.reasons == []
    assert cluster.first.serves == {2}


@pytest.mark.seed("57.9")
@in_virtual_time
async def test_an_owner_that_cannot_ask_for_the_first_time_asks_again_after_the_first_back_off() -> None:
    cluster = Cluster()
    cluster.service.session_timeout_ms = 60_000
    await cluster.first.ownership.start()
    session = cluster.session_of(cluster.first)
    get, asked, start_s = session.get, list[float](), asyncio.get_running_loop().time()

    async def counted(path: str, watch: Callable[[], None] | None = None) -> Any:
        if path == container_path(0):
            asked.append(round(asyncio.get_running_loop().time() - start_s, 1))
            if session.cut:
                cluster.first.ownership.prefer(0)  # a reason to ask, but it has just been asked
        return await get(path, watch)

    session.get = counted  # type: ignore[method-assign]
    cluster.service.cut(session.session_id)
    await pass_time(0.5)
    assert asked == [0.0, 0.1, 0.3]
    await pass_time(25)  # suspended by now, with a long back-off
    tried = len(asked)
    cluster.service.heal(session)
    await pass_time(0.01)
    assert len(asked) > tried, "a connection ends the back-off"
    await cluster.until(lambda: len(cluster.first.serves) == CONTAINERS)
    await cluster.first.ownership.stop()
    cluster.service.close()


@looped("why", ["given up", "refused"])
@played(session_expired_policy="reconnect", rebalance=False, takeover_delay_ms=2_000)
async def test_a_late_node_of_an_older_session_is_not_taken_for_another_stores(cluster: Cluster, why: str) -> None:
    older = await cluster.service.connect()
    await cluster.second.ownership.stop()
    await cluster.until(lambda: len(cluster.first.serves) == CONTAINERS)
    if why == "refused":
        cluster.storage.damaged[0] = "it is damaged"
        cluster.storage.fence[0]()
    else:
        cluster.first.ownership.give_up(0)
    await cluster.until(lambda: cluster.service.get(container_path(0)) is None)
    await older.create(container_path(0), b"first", ephemeral=True)
    await pass_time(60)
    assert cluster.first.reasons == []
    cluster.storage.damaged.clear()
    cluster.service.expire(older.session_id)
    await cluster.until(lambda: len(cluster.first.serves) == CONTAINERS)
