"""The keyword arguments of servers for tests, and the types of the fixtures that start them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from segstore.server import StoreOptions
from segstore.server.clock import Clock
from segstore.server.controller import Authority, ControllerConfig
from segstore.server.coordination import Coordinator, OwnershipSettings
from segstore.server.faults import FaultSettings
from segstore.server.replay import TraceOptions

if TYPE_CHECKING:
    from segstore.explore import Exploration, ExploreOptions
    from segstore.tap import TapOptions
    from segstore.testing.servers import RunningServer, RunningTap, RunningTrace


class ServerOptions(StoreOptions, total=False):
    """The keyword arguments of `Servers.serve`: those of `MockCluster`, users, and a recording."""

    stores: int
    controller: ControllerConfig | Mapping[str, Any] | None
    published_host: str | None
    authority: Authority | None
    users: Iterable[str] | None
    faults: FaultSettings | Path | str | None
    clock: Clock | None
    watched: bool
    http_port: int | None
    http_token_file: Path | None
    data: Path | None
    memory_bytes: int | None
    ownership: OwnershipSettings | None
    coordinator: Coordinator | None
    configuration: Coordinator | None
    record: Path | None
    record_tokens: bool
    record_values: Mapping[str, str] | None


class StartServer(Protocol):
    """The fixture `segstore_cluster`."""

    def __call__(self, *, process: bool | None = None, **settings: Unpack[ServerOptions]) -> RunningServer: ...


class StartTap(Protocol):
    """The fixture `segstore_tap`."""

    def __call__(
        self,
        controller: str | None = None,
        store: str | None = None,
        *,
        process: bool | None = None,
        **options: Unpack[TapOptions],
    ) -> RunningTap: ...


class StartTrace(Protocol):
    """The fixture `segstore_trace`."""

    def __call__(
        self,
        file: str | Path,
        *,
        check: bool | None = None,
        complete: bool = False,
        process: bool | None = None,
        **options: Unpack[TraceOptions],
    ) -> RunningTrace: ...


class Explore(Protocol):
    """The fixture `segstore_explore`."""

    def __call__(self, client: Callable[..., Any], **options: Unpack[ExploreOptions]) -> Exploration: ...
