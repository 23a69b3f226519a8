"""A link without sockets: its state and what both sides receive, event by event."""

import asyncio
from typing import Any

import pytest

from segstore.server.tap import TapSettings
from segstore.server.tap.link import Door, Link
from segstore.server.tap.states import TRANSITIONS, LinkEvent, LinkState
from segstore.wire.endpoint import Endpoint
from tests.server.support import until
from tests.server.tap.fake_transport import FakeTransport


class FakeTap:
    """What a link asks of its tap."""

    upstream_context = recorder = rules = None
    settings = TapSettings(store=("there", 1))
    closing = False
    queue: Any = None

    def __init__(self) -> None:
        self.links: set[Link] = set()

    def over(self, link: Link) -> None:
        self.links.remove(link)

    def leads_back(self, door: Door, to_store: asyncio.Transport) -> bool:
        return False

    def hold(self, link: Link, size: int) -> None:
        pass


class Play:
    """A link, its tap and its transports."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tap = FakeTap()
        self.client, self.store = FakeTransport(1), FakeTransport(3)
        may_connect = self._may_connect = asyncio.Event()

        async def connects(link: Link) -> None:
            await may_connect.wait()
            link.store.connection_made(self.store)

        monkeypatch.setattr(Link, "_connect", connects)
        self.link = Link(self.tap, Door(Endpoint("there", 1), 0))
        self.link.client.connection_made(self.client)

    async def connect(self) -> None:
        self._may_connect.set()
        await until(lambda: self.link._connecting is None)

    def lose(self, exc: Exception | None = None) -> None:
        """Both sockets are lost, the client's first."""
        self.link.client.connection_lost(exc)
        self.link.store.connection_lost(None)


@pytest.fixture
async def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(monkeypatch)


async def test_a_link_is_connected_passes_both_ways_and_is_closed_when_both_sides_are(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "segstore")
    link = play.link
    assert link.state is LinkState.CONNECTING
    await play.connect()
    assert link.state is LinkState.PASSING
    assert set(play.client.take()[:-1]) == {"pause"}, "it is not read until now"
    link.client.data_received(b"\xff\xff\xff\xff")
    link.store.data_received(b"\xff\xff\xff\xff")
    assert (play.client.take(), play.store.take()) == ([b"\xff" * 4], [b"\xff" * 4])
    link.client.connection_lost(None)
    assert link.state is LinkState.CLOSING
    assert play.store.take() == ["close"]
    link.store.connection_lost(None)
    assert link.state is LinkState.CLOSED
    assert not play.tap.links
    assert caplog.messages[-1].endswith(" ended: 4 bytes in, 4 bytes out")


async def test_data_of_a_client_that_ends_before_its_store_is_connected_is_forwarded(play: Play) -> None:
    play.link.client.data_received(b"\xff\xff\xff\xff")
    play.link.client.eof_received()
    assert play.link.state is LinkState.CLIENT_ENDED
    await play.connect()
    assert play.link.state is LinkState.CLIENT_ENDED
    assert play.store.take() == [b"\xff" * 4, "eof"]


async def test_a_store_that_is_connected_too_late_is_closed(play: Play) -> None:
    play.link.client.connection_lost(None)
    assert play.link.state is LinkState.CLOSING
    await play.connect()
    assert play.store.take() == ["close"]
    play.link.store.connection_lost(None)
    assert play.link.state is LinkState.CLOSED


async def test_a_link_that_ends_takes_a_late_end_of_its_sides_and_no_event_after_the_last(play: Play) -> None:
    await play.connect()
    play.client.take()
    play.link.disconnect("enough")
    play.link.store.eof_received()
    play.link.client.eof_received()
    assert play.client.take() == play.store.take() == ["close"]
    play.lose()
    with pytest.raises(ValueError, match="in state CLOSED cannot take CLOSE"):
        play.link.disconnect("again")


def test_nothing_follows_the_end_and_no_link_goes_back() -> None:
    order = list(LinkState)
    ends = [transition for transition, following in TRANSITIONS.items() if following is LinkState.CLOSED]
    assert ends == [(LinkState.CLOSING, LinkEvent.GONE)]
    for (state, _), following in TRANSITIONS.items():
        assert state is not LinkState.CLOSED
        assert order.index(following) >= order.index(state)
