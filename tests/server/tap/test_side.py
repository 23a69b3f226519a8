"""One side of a link without a socket: what is read when, and what is written in which order."""

import errno

import pytest

from segstore.server.tap.side import Side
from segstore.wire.trace import Direction
from tests.server.tap.fake_transport import FakeTransport


class Hears:
    """The owner of the sides."""

    peer = "here:1"

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.client, self.store = Side(self, Direction.REQUEST, "client"), Side(self, Direction.REPLY, "store")
        self.client.other, self.store.other = self.store, self.client

    def made(self, side: Side) -> None:
        self.heard.append("made")

    def received(self, side: Side, data: bytes) -> None:
        self.heard.append(data)

    def ended(self, side: Side) -> None:
        self.heard.append("ended")

    def lost(self, side: Side, exc: Exception | None) -> None:
        self.heard.append("lost")


@pytest.fixture
def owner() -> Hears:
    return Hears()


def test_a_transport_without_half_close_is_closed_at_the_end(owner: Hears) -> None:
    transport = FakeTransport(eof=False)
    owner.store.connection_made(transport)
    owner.store.end_writing()
    assert transport.take() == ["close"]


def test_a_side_is_read_again_when_no_reason_against_it_is_left(owner: Hears) -> None:
    transport = FakeTransport()
    owner.client.connection_made(transport)
    owner.client.hold("one")
    owner.store.pause_writing()
    owner.client.go_on("one")
    assert transport.take() == ["pause"]
    owner.store.resume_writing()
    owner.client.go_on("none of them")
    assert transport.take() == ["resume"]


def test_the_end_for_a_peer_that_has_just_left_ends_the_connection(owner: Hears) -> None:
    class Left(FakeTransport):
        def write_eof(self) -> None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    transport = Left()
    owner.store.connection_made(transport)
    owner.store.end_writing()
    assert transport.take() == ["abort"]


def test_eof_counts_once_also_if_it_is_reported_again_when_reading_is_resumed(owner: Hears) -> None:
    side = owner.client
    side.connection_made(FakeTransport())
    assert side.eof_received()
    assert side.eof_received()
    assert owner.heard == ["made", "ended"]


def test_data_after_the_loss_is_dropped(owner: Hears) -> None:
    owner.store.connection_lost(None)
    owner.store.write(b"late")
    transport = FakeTransport()
    owner.store.connection_made(transport)
    assert transport.take() == []


def test_first_bytes_that_are_no_hello_are_logged_once(owner: Hears, caplog: pytest.LogCaptureFixture) -> None:
    owner.client.data_received(b"GET / HTTP/1.1")
    owner.client.data_received(b"more")
    assert [record.message for record in caplog.records] == [
        "connection from here:1: of the client: its first bytes, 474554202f204854, are not a Hello"
    ]
    assert owner.heard == [b"GET / HTTP/1.1", b"more"]
