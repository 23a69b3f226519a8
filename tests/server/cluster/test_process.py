"""The controller of a cluster process: openings and resignations that are cancelled."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from segstore.server.cluster.leader import ControllerLeader, Leading
from segstore.server.coordination import ContainerOwnership, OwnershipSettings
from segstore.server.durable import ContainerEpoch, Durability, epochs_of
from segstore.server.shared_folder import SharedFolder
from segstore.server.store import Container, SegmentStore
from segstore.wire.endpoint import Endpoint
from tests.looped import looped
from tests.server.shared_folder.members import CONTAINERS
from tests.server.support import PATIENCE_S, until

HERE = Endpoint("127.0.0.1", 9)


@looped("part", ["calls", "segments", "durability"])
async def test_a_cancelled_resignation_closes_all_parts_and_no_later_one_waits_for_it(part: str) -> None:
    did: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name
            self.committer = self

        async def aclose(self) -> None:
            did.append(self.name)
            if self.name == part:
                raise asyncio.CancelledError

        close = aclose

        def fail(self, why: str, _: int) -> None:
            did.append(why)

    nothing: Any = SimpleNamespace(withdraw=lambda: did.append("withdrawn"))
    leader = ControllerLeader(HERE, nothing, nothing, nothing, nothing, nothing, nothing, list, {}, print)
    parts: Any = {each: Part(each) for each in ("epoch", "durability", "calls", "segments")}
    leader.leading = Leading(**parts)
    with pytest.raises(asyncio.CancelledError):
        await leader.resign()
    assert did == ["withdrawn", "calls", "segments", "durability", "another process leads the controller now"]
    assert leader.leading is None


async def test_an_opening_that_was_fenced_and_then_cancelled_is_cancelled() -> None:
    async def opened(_: int, fenced: Callable[[], Container | None]) -> None:
        fenced()
        raise asyncio.CancelledError

    nothing: Any = SimpleNamespace(open=opened)
    ownership = ContainerOwnership("a", nothing, nothing, SegmentStore(1, []), nothing, OwnershipSettings())
    with pytest.raises(asyncio.CancelledError):
        await ownership._open(0)


async def test_a_controllers_opening_that_is_cancelled_is_given_up_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = SharedFolder(tmp_path, "ours", CONTAINERS)
    folder.make()
    nothing: Any = SimpleNamespace()
    leader = ControllerLeader(HERE, nothing, nothing, folder, nothing, nothing, nothing, list, {}, print)
    inner, begun, go_on = leader._open, threading.Event(), threading.Event()

    def slow() -> tuple[ContainerEpoch, Durability]:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return inner()

    monkeypatch.setattr(leader, "_open", slow)
    try:
        leading = asyncio.create_task(leader.lead())
        await until(begun.is_set)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
    finally:
        go_on.set()
    await leader.resign()
    assert epochs_of(folder.controller) == [1]
    assert not list((folder.controller / "epoch-0000000001").iterdir())
