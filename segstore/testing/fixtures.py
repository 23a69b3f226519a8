"""The types of the plugin's fixtures that start servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from segstore.server.replay import TraceOptions
from segstore.testing.servers import RunningServer, RunningTap, RunningTrace, ServerOptions

if TYPE_CHECKING:
    from segstore.explore import Exploration, ExploreOptions
    from segstore.tap import TapOptions


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

    def __call__(
        self, client: Callable[..., Any] | str | Sequence[str], **options: Unpack[ExploreOptions]
    ) -> Exploration: ...
