"""The identity of a cluster's folder: who writes it, and which folders and nodes are refused."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from segstore.server.coordination import CoordinationError, InProcessCoordinator, InProcessSession
from segstore.server.durable import DirectoryDamaged, DirectoryForeign
from segstore.server.shared_folder import identify
from segstore.server.shared_folder.identity import CLUSTER


@contextlib.asynccontextmanager
async def coordination() -> AsyncIterator[InProcessSession]:
    coordinator = InProcessCoordinator()
    session = await coordinator.connect()
    try:
        yield session
    finally:
        await session.aclose()
        coordinator.close()


async def test_the_first_process_writes_the_identity_of_the_folder_and_the_others_read_it(tmp_path: Path) -> None:
    async with coordination() as session:
        first, second = await asyncio.gather(*[identify(session, "zk", tmp_path / "new", 4) for _ in range(2)])
        assert first == second
        assert await identify(session, "zk", tmp_path / "new", 4) == first
        assert sorted(each.name for each in (tmp_path / "new").iterdir()) == ["CLUSTER", "containers", "controller"]
        (tmp_path / "new" / "CLUSTER").rename(tmp_path / "kept")  # as one that was killed leaves it
    async with coordination() as session:
        assert await identify(session, "zk", tmp_path / "new", 4) != first
        (tmp_path / "kept").replace(tmp_path / "new" / "CLUSTER")
    async with coordination() as empty:  # a coordination service that knows nothing is told
        assert await identify(empty, "zk", tmp_path / "new", 4) == first


async def test_a_folder_that_is_not_the_clusters_is_refused_in_one_sentence(tmp_path: Path) -> None:
    async with coordination() as ours, coordination() as theirs, coordination() as fresh:
        data = tmp_path / "data"
        cluster = (await identify(ours, "zk", data, 4)).cluster
        other = (await identify(theirs, "zk2", tmp_path / "other", 4)).cluster
        with pytest.raises(DirectoryForeign, match="a cluster of 4 containers, and this one has 5; start it with --co"):
            await identify(ours, "zk", data, 5)
        with pytest.raises(DirectoryForeign, match=f"to cluster {cluster}, and ZooKeeper at zk2 knows.*{other}"):
            await identify(theirs, "zk2", data, 4)
        with pytest.raises(DirectoryForeign, match=f"holds nothing of cluster {cluster}, which ZooKeeper at zk knows"):
            await identify(ours, "zk", tmp_path / "empty", 4)
        assert not (tmp_path / "empty").exists()
        (tmp_path / "strange").mkdir()
        (tmp_path / "strange" / "letter.txt").write_text("dear all")
        with pytest.raises(DirectoryForeign, match=r"is not a cluster's, it holds 'letter.txt'"):
            await identify(fresh, "zk", tmp_path / "strange", 4)
        (tmp_path / "alone").mkdir()
        (tmp_path / "alone" / "MANIFEST").write_text("of one process")
        with pytest.raises(DirectoryForeign, match="is that of one process; start it without --zookeeper"):
            await identify(fresh, "zk", tmp_path / "alone", 4)
        (data / "CLUSTER").write_bytes((data / "CLUSTER").read_bytes().replace(b"4", b"3"))
        with pytest.raises(DirectoryDamaged, match="CLUSTER is damaged: it does not have its checksum"):
            await identify(ours, "zk", data, 4)


async def test_a_node_that_is_not_a_clusters_is_named(tmp_path: Path) -> None:
    async with coordination() as session:
        await session.create(CLUSTER, b"mine")
        with pytest.raises(CoordinationError, match="node /segstore/cluster of ZooKeeper at zk is not a cluster's"):
            await identify(session, "zk", tmp_path / "new", 4)
        assert not (tmp_path / "new").exists()
