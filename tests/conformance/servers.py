"""Starts a fresh segment store for dialogues, configured as their recordings require."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from segstore.server import MockSegmentStore
from segstore.wire.endpoint import Endpoint

ADMIN: Final = "-admin"
"""Suffix of a set-up's name whose dialogues use the admin port."""

SETUPS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "scratch": {},
    "clean": {},
    "auth": {"auth_key": "0123456789abcdef" * 4},
    "partial": {"containers": 2, "own": [0]},
    "stacktraces": {"stack_traces": True},
}
"""Set-up name → settings of the store. plain, scratch and clean are separate servers with equal settings."""

_LONG_POLL_S: Final = 3600
"""The reference never times out a tail read, so dialogues that wait run against a store that does not either."""


class Stores(msgspec.Struct, frozen=True):
    """The addresses of one segment store's ports."""

    data: Endpoint
    admin: Endpoint | None

    @classmethod
    def parse(cls, data: str, admin: str | None) -> Stores:
        """Reads two host:port. Raises ValueError."""
        return cls(Endpoint.parse(data), None if admin is None else Endpoint.parse(admin))


@asynccontextmanager
async def fresh_server(setup: str) -> AsyncIterator[Stores]:
    """Runs a store with the named set-up, given without `-admin`."""
    settings = SETUPS[setup]
    async with MockSegmentStore(admin_port=0, long_poll_s=_LONG_POLL_S, watched=False, **settings) as store:
        yield Stores(Endpoint(store.host, store.port), Endpoint(store.host, store.admin_port))
