"""The options of an exploration, and what else its runs have in common."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

from segstore.explore.commands import CommandClient, names_place

if TYPE_CHECKING:
    from segstore.explore.exploring import Plan
    from segstore.explore.results import Finding
    from segstore.server.node import Snapshots

Client = Callable[[Any], Awaitable[Any]]
"""Called with an `ExploredCluster`; returns when it is done. The bytes that it returns are what it has printed."""
Check = Callable[[Any], str | Awaitable[str | None] | None]
Segments = Mapping[str, Sequence[bytes]]
Tell = Callable[[int, int, "Finding | None"], object]
"""Takes progress: the number of runs so far, the total, and the finding of the last run, if any."""
_REPEATING: Final = ("stores", "timeout_s", "prepare", "check", "keep_order", "tokens", "with_http")


class ExploreOptions(TypedDict, total=False):
    """The keyword arguments of `explore`.

    Args:
        match: A filter of the requests and calls at which failures are injected.
        failures: Patterns of names of failures, such as "cut *".
        only: The name of a run, to repeat it: "cut after at APPEND_BLOCK_END 1". It is made whatever `match`,
            `failures` and `budget_s` say.
        timeout_s: After this time a client has hung; 5 by default.
        keep_order: Whether each writer's events must keep their order; true by default.
        check: A function, or a coroutine function, that is called after each run with the cluster; returns what else
            is broken, as "kind: text", or None; may raise AssertionError.
        stores: The number of stores, 1 by default; containers move with two or more.
        tokens: Whether the stores check delegation tokens, which the controller gives and which can expire.
        prepare: Called once with a cluster; each run starts with the state that it leaves.
        wanted: The events of each segment, if known in advance.
        complete: Whether all members of a class are tried, not only the first, the second and the last.
        pairs: Whether to combine two failures where the first one leads to points of new classes.
        budget_s: Seconds after which no run starts.
        seed: Chooses the order of equals; 0 for the order of the run.
        jobs: The number of runs side by side; two for each core by default.
        with_http: Whether each cluster serves the HTTP API, also without a command that names it.
        started: Called with the plan before the first run with a failure.
        tell: Called after each run.
    """

    match: str
    failures: Sequence[str]
    only: str
    timeout_s: float
    keep_order: bool
    check: Check | None
    stores: int
    tokens: bool
    prepare: Client | None
    wanted: Segments | None
    complete: bool
    pairs: bool
    budget_s: float | None
    seed: int
    jobs: int | None
    with_http: bool
    started: Callable[[Plan], object]
    tell: Tell


class ExplorerSetting(NamedTuple):
    """A client and the options of its exploration.

    Args:
        prepared: The snapshot with which each run starts, if any.
        leaked: The number of connections that the client leaves open without faults.
        streams: Whether the controller knows streams.
    """

    client: Client
    match: str = ""
    failures: Sequence[str] = ("*",)
    only: str = ""
    timeout_s: float = 5.0
    keep_order: bool = True
    check: Check | None = None
    stores: int = 1
    tokens: bool = False
    prepare: Client | None = None
    wanted: Segments | None = None
    complete: bool = False
    pairs: bool = False
    budget_s: float | None = None
    seed: int = 0
    jobs: int | None = None
    with_http: bool = False
    started: Callable[[Plan], object] = lambda plan: None
    tell: Tell = lambda done, of, finding: None
    prepared: Snapshots | None = None
    leaked: int = 0
    streams: bool = True

    @property
    def side_by_side(self) -> int:
        """The number of runs side by side."""
        return self.jobs or 2 * (os.cpu_count() or 1)

    @property
    def needs_http(self) -> bool:
        """Whether each cluster serves the HTTP API."""
        commands = (client for client in (self.client, self.prepare) if isinstance(client, CommandClient))
        return self.with_http or any(names_place(command.words, "http") for command in commands)

    @property
    def repeating(self) -> dict[str, object]:
        """The options that repeat a run and are no defaults."""
        return {name: value for name in _REPEATING if (value := getattr(self, name)) != self._field_defaults[name]}
