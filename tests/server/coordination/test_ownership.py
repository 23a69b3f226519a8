"""PIP-57: what a store does when its coordination session expires, in virtual time."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from segstore.server.coordination import InProcessSession, LoadReport, SessionState, SharedContainers, container_path
from segstore.server.coordination.placement import store_path
from segstore.server.durable import DirectoryUnusable
from segstore.server.store import Container
from tests.looped import looped
from tests.server.coordination.clusters import CONTAINERS, TIMEOUT_S, Cluster, opened_by_another, played, recorded
from tests.server.coordination.stores import Store
from tests.server.coordination.virtual_time import pass_time


@pytest.mark.seed("57.1")
@played(session_expired_policy="shutdown")
async def test_with_shutdown_the_store_ends_and_the_others_take_its_containers(cluster: Cluster) -> None:
    cluster.session_of(cluster.first).why = "the service was wiped"
    cluster.expire(cluster.first)
    await cluster.until(lambda: cluster.second.serves == {0, 1, 2, 3})
    assert cluster.first.reasons == ["its coordination session has expired: the service was wiped"]
    assert cluster.first.serves == set()
    assert cluster.first.ownership.session is None


@pytest.mark.seed("57.2")
@played(session_expired_policy="reconnect")
async def test_with_reconnect_the_store_owns_again_what_it_had(cluster: Cluster) -> None:
    old = cluster.session_of(cluster.first)
    cluster.expire(cluster.first)
    await cluster.until(lambda: cluster.first.serves == {0, 2})
    assert cluster.second.serves == {1, 3}
    assert cluster.session_of(cluster.first).session_id != old.session_id
    assert cluster.first.reasons == []


@pytest.mark.seed("57.2")
@played(session_expired_policy="reconnect", session_reconnect_retries=3)
async def test_a_store_that_gets_no_new_session_shuts_down(cluster: Cluster) -> None:
    async def refused() -> InProcessSession:
        cluster.service.pause()
        return await connect()

    connect, cluster.service.connect = cluster.service.connect, refused  # type: ignore[method-assign]
    cluster.expire(cluster.first)
    await cluster.until(lambda: bool(cluster.first.reasons))
    assert "there is no new one" in cluster.first.reasons[0]
    assert cluster.first.serves == set()
    cluster.service.resume()


@pytest.mark.seed("57.3")
@played(session_expired_policy="reconnect")
async def test_a_suspended_store_serves_until_it_is_fenced_or_learns_of_its_expiry(cluster: Cluster) -> None:
    session = cluster.session_of(cluster.first)
    cluster.service.cut(session.session_id)
    await pass_time(TIMEOUT_S * 0.9)
    assert session.state is SessionState.SUSPENDED
    assert cluster.first.serves == {0, 2}
    await cluster.until(lambda: cluster.second.serves == {0, 1, 2, 3})
    assert cluster.first.serves == set()


@pytest.mark.seed("57.4")
@played(session_expired_policy="reconnect")
async def test_a_container_that_was_not_opened_in_between_is_served_from_memory(cluster: Cluster) -> None:
    container = cluster.first.store.containers[0]
    opened = list(cluster.storage.opened)
    cluster.expire(cluster.first)
    await cluster.until(lambda: cluster.first.serves == {0, 2})
    assert cluster.first.store.containers[0] is container
    assert cluster.storage.opened == opened


@pytest.mark.seed("57.4")
@played(session_expired_policy="reconnect", preload=True)
async def test_a_container_that_another_opened_in_between_is_opened_at_once_with_preload(cluster: Cluster) -> None:
    cluster.storage.opened.clear()
    await opened_by_another(cluster)
    await cluster.until(lambda: cluster.first.serves == {0, 2})
    assert cluster.storage.opened == [0]


@pytest.mark.seed("57.4")
@played(session_expired_policy="reconnect")
async def test_a_container_that_another_opened_in_between_is_opened_on_its_first_use(cluster: Cluster) -> None:
    cluster.storage.opened.clear()
    await opened_by_another(cluster)
    await cluster.until(lambda: 0 in cluster.first.first_uses)
    await pass_time(5)
    assert cluster.first.serves == {2}
    assert cluster.storage.opened == []
    cluster.first.first_uses[0]()
    await cluster.until(lambda: cluster.first.serves == {0, 2})
    assert cluster.storage.opened == [0]


@pytest.mark.seed("57.4")
@looped("stale_node", ["wait", "replace"])
def test_a_node_of_an_older_session_of_ours_is_waited_for_or_replaced(stale_node: str) -> None:
    @played(session_expired_policy="reconnect", stale_node=stale_node)
    async def play(cluster: Cluster) -> None:
        older = await cluster.service.connect()
        await cluster.second.ownership.stop()
        await cluster.until(lambda: len(cluster.first.serves) == CONTAINERS)
        # The first store's session ends, and before it comes back there is a node of its own from another session.
        service, path = cluster.service, container_path(0)
        cluster.expire(cluster.first)
        await older.create(path, b"first", ephemeral=True)
        await cluster.until(lambda: cluster.first.serves >= {1, 2, 3})
        await pass_time(5)
        if stale_node == "wait":
            assert 0 not in cluster.first.serves
            service.expire(older.session_id)
        await cluster.until(lambda: len(cluster.first.serves) == CONTAINERS)
        node = service.get(path)
        assert node.owner == cluster.session_of(cluster.first).session_id

    play()


@pytest.mark.seed("57.4")
@played(session_expired_policy="reconnect", rebalance=False)
async def test_a_container_that_is_anothers_is_unloaded_at_once(cluster: Cluster) -> None:
    session = await cluster.service.connect()
    epoch, container = cluster.first.epoch_of(0), cluster.first.store.containers[0]
    cluster.expire(cluster.first)
    await session.create(container_path(0), b"somebody", ephemeral=True)
    await cluster.until(lambda: cluster.first.serves == {2})
    assert cluster.storage.closed == [(0, epoch, container)]
    kept = await cluster.storage.open(0, lambda: None)
    assert isinstance(kept[1], Container)
    assert not cluster.first.epoch_of(0)


@pytest.mark.seed("57.5")
@looped(
    ("error", "said"),
    [
        (ZeroDivisionError("a defect"), "ZeroDivisionError('a defect')"),
        (DirectoryUnusable(Path("data"), OSError(errno.ENOSPC, "No space left on device")), "No space left on device"),
    ],
)
@played(session_expired_policy="reconnect", preload=True)
async def test_an_unexpected_error_while_owning_again_ends_the_store(
    cluster: Cluster, error: Exception, said: str
) -> None:
    cluster.storage.fails = error
    await opened_by_another(cluster)
    await cluster.until(lambda: bool(cluster.first.reasons))
    assert said in cluster.first.reasons[0]
    assert cluster.first.serves == set()
    cluster.storage.fails = None
    await cluster.until(lambda: len(cluster.second.serves) == CONTAINERS)


@pytest.mark.seed("57.4")
@played(session_expired_policy="reconnect", preload=True)
async def test_a_container_that_cannot_be_opened_has_no_owner_and_ends_no_store(cluster: Cluster) -> None:
    stores = (cluster.first, cluster.second)
    cluster.storage.damaged[0] = "it is damaged"
    await opened_by_another(cluster)
    await cluster.until(lambda: all(0 in store.ownership.refused for store in stores))
    await pass_time(100)
    assert cluster.first.ownership.refused == {0: "container 0 cannot be opened: it is damaged"}
    assert cluster.first.reasons == cluster.second.reasons == []
    assert cluster.first.serves | cluster.second.serves == {1, 2, 3}
    assert cluster.service.get(container_path(0)) is None
    assert cluster.storage.opened.count(0) <= 3  # what nobody has mended is not tried again
    cluster.storage.damaged.clear()
    await cluster.until(lambda: cluster.first.serves | cluster.second.serves == {0, 1, 2, 3})
    await pass_time(10)
    assert cluster.first.ownership.refused == cluster.second.ownership.refused == {}, "also where it is not served"


@played(session_expired_policy="reconnect", preload=True)
async def test_a_store_that_can_open_nothing_ends(cluster: Cluster) -> None:
    cluster.storage.damaged = dict.fromkeys(range(CONTAINERS), "it is damaged")
    for each in range(CONTAINERS):
        await SharedContainers.open(cluster.storage, each, lambda: None)
    for store in (cluster.first, cluster.second):
        cluster.expire(store)
    await cluster.until(lambda: bool(cluster.first.reasons) and bool(cluster.second.reasons))
    assert cluster.first.reasons[0].startswith("owning its containers failed: no container can be opened; container ")


@pytest.mark.seed("57.6")
@played(session_expired_policy="reconnect")
async def test_after_a_new_session_the_load_is_reported_again(cluster: Cluster) -> None:
    cluster.expire(cluster.first)
    assert cluster.service.get(store_path("first")) is None
    await cluster.until(lambda: cluster.service.get(store_path("first")) is not None)
    node = cluster.service.get(store_path("first"))
    assert node.owner == cluster.session_of(cluster.first).session_id
    assert msgspec.json.decode(node.data, type=LoadReport).containers <= 2


class Busy(Store):
    def load(self) -> LoadReport:
        return LoadReport(containers=40)


@pytest.mark.seed("57.6")
@played(rebalance=False)
async def test_an_unowned_container_goes_to_the_store_with_least_to_do(cluster: Cluster) -> None:
    busy = Busy("busy", cluster.service, cluster.storage, CONTAINERS, seed=7, rebalance=False)
    await busy.ownership.start()
    await cluster.first.ownership.stop()
    await cluster.until(lambda: cluster.second.serves == {0, 1, 2, 3})
    assert busy.serves == set()
    await busy.ownership.stop()


@pytest.mark.seed("57.9")
@played(session_expired_policy="reconnect")
async def test_one_task_a_container_is_at_work_and_no_more_after_many_expiries(cluster: Cluster) -> None:
    for _ in range(5):
        cluster.expire(cluster.first)
        await cluster.until(lambda: cluster.first.serves == {0, 2})
    names = [task.get_name() for task in asyncio.all_tasks() if task.get_name().endswith("by first")]
    assert sorted(names) == [f"ownership of container {each} by first" for each in range(CONTAINERS)]


def foreign(path: str, data: bytes) -> Callable[[Cluster], Coroutine[Any, Any, InProcessSession]]:
    """A node that somebody else has put there."""

    async def put(cluster: Cluster) -> InProcessSession:
        session = await cluster.service.connect()
        await session.create(path, data)
        return session

    return put


@pytest.mark.seed("57.6")
@played(session_expired_policy="reconnect", load_report_interval_ms=500)
async def test_a_load_report_that_is_none_is_named_once_and_passed_over(cluster: Cluster) -> None:
    with recorded() as said:
        await foreign(store_path("somebody"), b"\xff not a report")(cluster)
        await cluster.first.ownership.stop()
        await cluster.until(lambda: cluster.second.serves == {0, 1, 2, 3})
        await pass_time(5)
    named = [line for line in said if "/segstore/stores/somebody" in line]
    assert len(named) == 1
    assert r"b'\xff not a report'" in named[0]
    assert cluster.second.reasons == []


@pytest.mark.seed("57.4")
@played(session_expired_policy="reconnect")
async def test_a_containers_node_that_no_session_holds_is_named_and_left_alone(cluster: Cluster) -> None:
    with recorded() as said:
        cluster.service.expire(cluster.session_of(cluster.first).session_id)
        stranger = await foreign(container_path(0), b"a stranger's")(cluster)
        await cluster.until(lambda: cluster.first.serves == {2})
        await pass_time(5)
        (line,) = [line for line in said if "first" in line and "container 0" in line]
    assert "node /segstore/containers/0 belongs to no session" in line
    await stranger.delete(container_path(0))
    await cluster.until(lambda: 0 in cluster.first.serves | cluster.second.serves)


@looped("stale_node", ["wait", "replace"])
def test_of_two_stores_of_one_name_one_shuts_down_with_the_reason(stale_node: str) -> None:
    @played(session_expired_policy="reconnect", stale_node=stale_node)
    async def play(cluster: Cluster) -> None:
        twin = Store("first", cluster.service, cluster.storage, CONTAINERS, seed=9, stale_node=stale_node)
        await twin.ownership.start()
        await cluster.until(lambda: bool(twin.reasons or cluster.first.reasons))
        (reason,) = twin.reasons or cluster.first.reasons
        assert "another store is called 'first' too" in reason
        left = cluster.first if twin.reasons else twin
        await pass_time(60)
        assert left.reasons == []
        await cluster.until(lambda: len(left.serves | cluster.second.serves) == CONTAINERS)
        await twin.ownership.stop()

    play()


@played(session_expired_policy="reconnect", rebalance=False, takeover_delay_ms=500)
async def test_a_container_that_was_given_up_is_left_to_others_for_two_delays(cluster: Cluster) -> None:
    store = cluster.first
    await cluster.second.ownership.stop()
    await cluster.until(lambda: store.serves == {0, 1, 2, 3})
    for expires in (False, True):  # what a store had when its session ended is taken at once, but only after that
        if expires:
            old = cluster.session_of(store)
            cluster.expire(store)
            await cluster.until(lambda old=old: store.ownership.session not in (old, None))  # type: ignore[misc]
            await cluster.until(lambda: store.serves == {0, 1, 2, 3})
        began_s = asyncio.get_running_loop().time()
        store.ownership.give_up(0)
        await cluster.until(lambda: 0 not in store.serves)
        await cluster.until(lambda: 0 in store.serves)
        assert 1.0 <= asyncio.get_running_loop().time() - began_s < 1.1
