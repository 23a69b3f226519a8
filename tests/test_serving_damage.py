"""A cluster of processes on a folder in which one container is damaged: it is named, and the others are served."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from segstore.client import ClientSettings, connect
from segstore.client.errors import PeerRefused
from segstore.server import StoreSettings
from segstore.server.cluster import ClusterProcess, ClusterSettings, ZooKeeperSettings
from segstore.server.coordination import OwnershipSettings
from segstore.server.durable import ContainerEpoch, Durability, epochs_of
from segstore.server.shared_folder import SharedFolder
from segstore.wire.names import container_of
from tests.cluster_processes import IMPATIENT
from tests.processes import invoke
from tests.server.coordination.zookeeper_server import PART
from tests.server.support import PATIENCE_S

pytestmark = [pytest.mark.needs(PART), pytest.mark.usefixtures("grpc_runs"), pytest.mark.timeout(400)]

CONTAINERS = 2
SOON_TIRED = ClientSettings(request_timeout_ms=5_000)
OWNERSHIP = OwnershipSettings(session_timeout_ms=30_000, takeover_delay_ms=20, load_report_interval_ms=200)
_names = count()


@asynccontextmanager
async def processes(data: Path, place: str, number: int) -> AsyncIterator[list[ClusterProcess]]:
    """As many as asked for, in this one."""
    settings = ClusterSettings(
        store=StoreSettings(port=0, containers=CONTAINERS), controller_port=0, data=data, ownership=OWNERSHIP
    )
    made = [ClusterProcess(settings, ZooKeeperSettings(zookeeper=place)) for _ in range(number)]
    async with AsyncExitStack() as stack:
        for each in made:
            stack.push_async_callback(each.stop, drain_s=0)
        await asyncio.gather(*(each.start() for each in made))
        yield made


def uri(made: list[ClusterProcess]) -> str:
    return "tcp://" + ",".join("{}:{}".format(*each.controller_address) for each in made if each.controller_address)


def container(stream: str) -> int:
    return container_of(f"a/{stream}/0.#epoch.0", CONTAINERS)


STREAMS = [f"s{number}" for number in range(8)]
DAMAGED = container(STREAMS[0])
HURT = STREAMS[0]
WELL = next(stream for stream in STREAMS if container(stream) != DAMAGED)


def verified(data: Path) -> tuple[int, str, str]:
    """Status, standard output and standard error of `segstore verify`."""
    found = invoke("verify", data)
    return found.exit_code, found.stdout, found.stderr


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


async def events(where: str, stream: str, number: int) -> list[bytes]:
    async with connect(where, IMPATIENT) as client, client.event_reader("a", stream) as reader:
        return [bytes((await anext(reader)).data) for _ in range(number)]


async def test_one_damaged_container_is_named_and_the_others_are_served_until_it_is_mended(
    tmp_path: Path, zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, place = tmp_path / "data", f"{zookeeper}/damaged-{next(_names)}"
    async with processes(data, place, 1) as made, connect(uri(made), IMPATIENT) as client:
        await client.controller.create_scope("a")
        for stream in (HURT, WELL):
            await client.controller.create_stream("a", stream, segments=1)
            async with client.event_writer("a", stream) as writer:
                await writer.write(b"before")
    status, out, err = verified(data)
    assert (status, err) == (0, "")
    folder = data / "containers" / str(DAMAGED)
    assert f"{folder}: epoch 1 is current" in out

    snapshot = next(folder.glob("epoch-*/snapshot-*"))
    flip(snapshot)
    status, out, err = verified(data)
    assert status == 1
    assert f"{snapshot} is damaged" in err
    async with processes(data, place, 2) as made, asyncio.timeout(PATIENCE_S):
        for each in made:
            refused = each.ownership.refused
            await each.ownership.until(lambda: DAMAGED in refused)  # noqa: B023  it is called at once
            why = refused[DAMAGED]
            assert why == (
                f"container {DAMAGED} cannot be opened: {snapshot} is damaged: it does not have its checksum; "
                f"restore {folder} from a copy, `segstore verify {data}` says what else is"
            )
            assert not each.failure.done()
        assert why in caplog.text
        async with connect(uri(made), IMPATIENT) as client, client.event_writer("a", WELL) as writer:
            await writer.write(b"meanwhile")
        async with connect(uri(made), SOON_TIRED) as client:
            with pytest.raises(PeerRefused, match=f"container {DAMAGED} cannot be opened: {snapshot} is damaged"):
                await client.controller.endpoint_of("a", HURT, 0)
        flip(snapshot)
        async with connect(uri(made), IMPATIENT) as client, client.event_writer("a", HURT) as writer:
            await writer.write(b"mended")
        assert await events(uri(made), HURT, 2) == [b"before", b"mended"]
        assert await events(uri(made), WELL, 2) == [b"before", b"meanwhile"]
    status, out, err = verified(data)
    assert (status, err) == (0, "")
    found = epochs_of(folder)  # both processes tried to open it, any number of times
    assert found[-1] > 1
    # The last epoch is not current if the second process was taking over from the first when it was stopped.
    assert any(f"{folder}: epoch {each} is current" in out for each in found)


async def test_a_process_has_started_when_what_it_owns_is_open(
    tmp_path: Path, zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, place = tmp_path / "data", f"{zookeeper}/damaged-{next(_names)}"
    begun, opened = Event(), Event()
    open_folder = SharedFolder.open

    def slow(self: SharedFolder, folder: Path, *args: Any) -> tuple[ContainerEpoch, Durability]:
        if folder.parent.name == "containers":
            begun.set()
            assert opened.wait(PATIENCE_S)
        return open_folder(self, folder, *args)

    monkeypatch.setattr(SharedFolder, "open", slow)
    settings = ClusterSettings(
        store=StoreSettings(port=0, containers=CONTAINERS), controller_port=0, data=data, ownership=OWNERSHIP
    )
    process = ClusterProcess(settings, ZooKeeperSettings(zookeeper=place))
    starting = asyncio.create_task(process.start())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not begun.is_set() or process.controller is None or "no process owns" in process._missing():
                assert not starting.done(), starting
                await asyncio.sleep(0.01)
        opening = ", ".join(map(str, range(CONTAINERS)))
        assert process._missing() == f"container {opening} is still being opened"
        await asyncio.sleep(0.05)  # it looks a few times
        assert not starting.done()
        opened.set()
        await starting
        assert all(process.ownership.owns(each) for each in range(CONTAINERS))
    finally:
        opened.set()
        await asyncio.wait({starting})
        await process.stop(drain_s=0)


async def test_verify_distinguishes_the_epochs_of_a_folder(tmp_path: Path, zookeeper: str) -> None:
    data, place = tmp_path / "data", f"{zookeeper}/damaged-{next(_names)}"
    async with processes(data, place, 1) as made, connect(uri(made), IMPATIENT) as client:
        await client.controller.create_scope("a")
        status, _, err = verified(data)
        assert status == 1
        assert "is in use by another process" in err
    for epoch in (2, 3):
        (data / "containers" / "1" / f"epoch-{epoch:010}").mkdir()
    status, out, err = verified(data)
    assert (status, err) == (0, "")
    assert f"{data / 'containers' / '1'}: epoch 1 is current" in out
    assert f"{data / 'containers' / '1'}: epoch 3 was never in force" in out
    (data / "containers" / "1").rename(tmp_path / "taken away")
    manifest = data / "controller" / "epoch-0000000001" / "MANIFEST"
    manifest.unlink()
    status, _, err = verified(data)
    assert status == 1
    assert f"{data / 'containers' / '1'} is damaged: it is missing" in err
    assert f"{manifest} is damaged: it is missing" in err
    (data / "CLUSTER").unlink()
    with pytest.raises(Exception, match="CLUSTER is damaged: it is missing"):
        async with processes(data, place, 1):
            raise AssertionError("it has started")
