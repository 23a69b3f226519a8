"""One user's side of a connection."""

from __future__ import annotations

import gc
from typing import cast
from weakref import ref

from segstore.client.connection import Flow
from segstore.client.connection.transport import Connection
from tests.client.support import Recorder


def test_a_flow_that_nobody_holds_lets_go_of_its_user_at_once() -> None:
    gc.disable()
    try:
        user = Recorder()
        flow = Flow(1, cast("Connection", None), user, lambda _: None)
        held = ref(user)
        del flow, user
        assert held() is None
    finally:
        gc.enable()
