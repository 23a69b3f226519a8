"""Stores for tests of connections: without a lane, as those of `segstore serve`, and with one."""

from collections.abc import Callable
from functools import partial

import pytest

from segstore.server import MockSegmentStore
from tests.server.connection.driven import Line, NewRoom, Room

Started = Callable[..., MockSegmentStore]


@pytest.fixture(params=[False, True], ids=["bare", "watched"])
def started(request: pytest.FixtureRequest) -> Started:
    """Makes a store whose connections have no lane, or one without rules: the same tests hold for both."""
    return partial(MockSegmentStore, watched=request.param)


@pytest.fixture
def new_room(monkeypatch: pytest.MonkeyPatch) -> NewRoom:
    """Makes a room; its arguments are those of `Room`."""
    return partial(Room, monkeypatch)


@pytest.fixture
def room(new_room: NewRoom) -> Room:
    return new_room()


@pytest.fixture
def line(room: Room) -> Line:
    """The first connection of `room`."""
    return room.connect()
