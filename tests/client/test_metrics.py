"""The numbers of a client for prometheus-client: all of them, from any thread; without the library a sentence."""

import asyncio
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from segstore.client import Client, PoolMetrics, connect
from segstore.client.metrics import METRICS, collector
from segstore.server.cluster import MockCluster
from tests.client.support import make_stream, settings, until

pytestmark = pytest.mark.usefixtures("grpc_runs")


def value(registry: CollectorRegistry, name: str, client_name: str = "default") -> float:
    found = registry.get_sample_value(f"segstore_client_{name}", {"client": client_name})
    assert found is not None, name
    return found


def test_every_number_of_the_pool_has_a_name_of_its_own() -> None:
    assert list(METRICS) == list(PoolMetrics.__struct_fields__)
    assert len({metric.name for metric in METRICS.values()}) == len(METRICS)


async def test_the_numbers_are_those_of_the_client_now(mock: MockCluster, pravega: Client) -> None:
    registry = CollectorRegistry(auto_describe=True)
    registry.register(collector(pravega))
    assert value(registry, "connections") == 0
    await make_stream(pravega)
    async with pravega.event_writer("a", "s") as writer:
        await writer.write(b"x")
        now = pravega.metrics()
        assert value(registry, "connections") == now.connections == 1
        assert value(registry, "flows") == now.flows == 1
        assert value(registry, "sent_bytes_total") == now.bytes_out > 0
        for connection in tuple(mock.stores[0].hub.connections):
            connection.abort()
        await writer.write(b"y")
        await until(lambda: pravega.metrics().reconnects == 1)
        assert value(registry, "reconnects_total") == value(registry, "connections_lost_total") == 1
        assert value(registry, "in_flight_bytes") == 0
    assert value(registry, "metrics_age_seconds") == 0
    text = generate_latest(registry).decode()
    for field, described in METRICS.items():
        assert f"segstore_client_{described.name}" in text, field
        assert described.help in text


async def test_a_scrape_of_another_thread_asks_the_loop_and_gets_old_numbers_when_it_is_busy_or_gone() -> None:
    async with connect("tcp://127.0.0.1:1", settings()) as pravega:
        made = collector(pravega, timeout_s=0.02)
        registry = CollectorRegistry()
        registry.register(made)
        age = await asyncio.to_thread(value, registry, "metrics_age_seconds")
        assert age >= 0
        ages: list[float] = []
        scrape = threading.Thread(target=lambda: ages.append(value(registry, "metrics_age_seconds")))
        scrape.start()
        scrape.join()  # and the loop does not turn meanwhile
        assert ages[0] > 0
    assert value(registry, "connections") == 0
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_several_clients_of_a_process_share_one_collector() -> None:
    async with connect("tcp://127.0.0.1:1", settings()) as one, connect("tcp://127.0.0.1:1", settings()) as two:
        made = collector(one, name="one")
        made.add(two, name="two")
        with pytest.raises(ValueError, match="one"):
            made.add(two, name="one")
        registry = CollectorRegistry()
        registry.register(made)
        assert value(registry, "flows", "one") == value(registry, "flows", "two") == 0
        assert generate_latest(registry).decode().count("# TYPE segstore_client_flows ") == 1
        made.remove("one")
        made.remove("one")
        assert registry.get_sample_value("segstore_client_flows", {"client": "one"}) is None


async def test_without_the_library_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    async with connect("tcp://127.0.0.1:1", settings()) as pravega:
        with pytest.raises(ImportError, match="pip install 'prometheus-client>="):
            collector(pravega)
        assert pravega.metrics().connections == 0
