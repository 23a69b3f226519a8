"""The state that the readers of a group share, and changes of it, wherever it is kept.

There are two forms of a group, and one state from which the readers of either form decide: `GroupLog` stores it as
readers in Java do, `GroupTable` as readers in Rust and of the Python package `pravega` do. So readers in any of these
languages agree on the state. The first `fetch` or `change` finds the form.

Invariant: a change is made from the newest state, at most once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, TypeVar

from segstore.client.connection import Locations
from segstore.client.controller import Cluster
from segstore.client.errors import (
    ClientError,
    ConditionFailed,
    NoSuchReaderGroup,
    NoSuchStream,
    SegmentMissing,
    TokenRefused,
)
from segstore.client.groups.log import GroupLog, WatchedCheckpoint
from segstore.client.groups.state import Draft
from segstore.client.groups.table import GroupTable
from segstore.client.lifecycle import finish
from segstore.wire.reader_groups import GroupState, InitialState, Update

log = logging.getLogger(__name__)

T = TypeVar("T")

GroupForm = Literal["java", "rust"]
"""The clients that share a group with this client: in Java, or in Rust and the Python package `pravega`."""


class SharedGroup:
    """The state of one group.

    Attributes:
        group: "scope/name".
        state: as of the last `fetch` or `change`; must not be modified.
        form: None until it is found.
    """

    def __init__(
        self, cluster: Cluster, locations: Locations, scope: str, name: str, *, recovers: bool = False
    ) -> None:
        """locations: used for the group's state. recovers: used by a reader, which retries for longer than a call."""
        self.scope: Final = scope
        self.name: Final = name
        self.group: Final = f"{scope}/{name}"
        self.state = GroupState()
        self.form: GroupForm | None = None
        self._log = GroupLog(cluster, locations, scope, name, recovers=recovers)
        table = GroupTable(cluster, locations, scope, name, recovers=recovers)
        self._stores: dict[GroupForm, GroupLog | GroupTable] = {"java": self._log, "rust": table}
        self._close_s = cluster.pool.settings.close_timeout_ms / 1000
        self._lock = asyncio.Lock()

    @property
    def _store(self) -> GroupLog | GroupTable:
        return self._stores[self.form or "java"]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Where the state is, for errors."""
        return self._store.facts

    def missing(self) -> NoSuchReaderGroup:
        """Returns the error for a group that does not exist."""
        return NoSuchReaderGroup(f"reader group {self.group} does not exist", **self.facts)

    def refuse_in_table(self, what: str) -> None:
        """Raises ConditionFailed if the group's state is in a table, which lacks data of Java's form."""
        if self.form == "rust":
            raise ConditionFailed(
                f"the reader group {self.group} has no {what}: it is shared with clients in Rust and the Python package"
                " pravega, whose groups have none",
                **self.facts,
            )

    @contextmanager
    def _missing_as_no_group(self) -> Iterator[None]:
        try:
            yield
        except NoSuchReaderGroup:
            raise
        except (NoSuchStream, SegmentMissing) as error:
            raise self.missing() from error

    # --- the state --------------------------------------------------------------------------------------------------

    async def initialise(self, form: GroupForm, initial: InitialState) -> None:
        """Writes the first state of a group of a form, unless another client has.

        Raises NoSuchReaderGroup if it was deleted and its store has not yet released the name, and ConditionFailed if a
        key-value table has its name.
        """
        async with self._lock:
            with self._missing_as_no_group():
                self.state = await self._stores[form].initialise(initial)
            self.form = form

    async def fetch(self) -> GroupState:
        """Reads new records or entries; returns the state.

        Raises NoSuchReaderGroup, also if no client has written the first state, ProtocolViolation, and the errors of
        requests.
        """
        async with self._lock:
            await self._fetch()
            return self.state

    async def _fetch(self) -> None:
        if self.form is None:
            await self._find()
            return
        with self._missing_as_no_group():
            state = await self._store.fetch()
        if state is None:
            raise self.missing()
        self.state = state

    async def _find(self) -> None:
        """Fetches the state from where it is kept."""
        refused: TokenRefused | None = None
        for form, store in self._stores.items():
            try:
                state = await store.fetch()
            except (NoSuchStream, SegmentMissing):
                continue
            except TokenRefused as error:  # which a store may report of a table that does not exist
                refused = error if form == "java" else refused
                continue
            if state is not None:
                self.form, self.state = form, state
                return
        raise self.missing() if refused is None else refused

    async def change(self, decide: Callable[[Draft], T]) -> T:
        """Lets `decide` change a draft of the state, writes its updates, and returns its result.

        On a conflict with another client it is called again with the newer state. If it raises, nothing changes.
        Raises NoSuchReaderGroup, RetriesExhausted, and the errors of requests.
        """
        decided: list[T] = []

        def updates(state: GroupState) -> Sequence[Update]:
            if state.config is None:
                raise self.missing()
            draft = Draft(self.group, state)
            decided[:] = [decide(draft)]
            return draft.updates

        async with self._lock:
            if self.form is None:
                await self._find()
            with self._missing_as_no_group():
                self.state = await self._store.update(updates)
        return decided[0]

    async def change_or_undo(self, decide: Callable[[Draft], T], undo: Callable[[Draft], object], what: str) -> T:
        """As `change`. If cancelled, waits until the change has ended and applies `undo` if it succeeded.

        Both take at most `close_timeout_ms`. what: names the change in a warning if it could not be undone.
        """
        changing = asyncio.get_running_loop().create_task(self.change(decide), name=f"{what} of {self.group}")
        try:
            return await asyncio.shield(changing)
        except asyncio.CancelledError:
            await finish(self._undo(changing, undo, what), f"undoing {what} of {self.group}")
            raise

    async def _undo(self, changing: asyncio.Task[T], undo: Callable[[Draft], object], what: str) -> None:
        try:
            async with asyncio.timeout(self._close_s):
                await asyncio.wait([changing])
                if not changing.cancelled() and changing.exception() is None:
                    await self.change(undo)
        except (ClientError, TimeoutError) as problem:
            text = "%s of %s was cancelled, but may have been applied: %r"
            log.warning(text, what, self.group, problem, extra=dict(self.facts))
        finally:
            changing.cancel()
            await asyncio.gather(changing, return_exceptions=True)

    # --- checkpoints ------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self, checkpoint: str) -> Iterator[Callable[[], Mapping[str, int] | None]]:
        """Yields a function that returns the positions of a checkpoint, segment → offset; None if it is not complete.

        They are known even if other clients have forgotten the checkpoint since it was complete.
        """

        watched = WatchedCheckpoint(checkpoint)

        def taken() -> Mapping[str, int] | None:
            positions = watched.positions
            return self.state.checkpoints.complete(checkpoint) if positions is None else positions

        self._log.watched.add(watched)
        try:
            yield taken
        finally:
            self._log.watched.remove(watched)

    # --- the store --------------------------------------------------------------------------------------------------

    async def compact_if_due(self) -> None:
        """Compacts the state now and then, so that new readers read less."""
        if self.form == "rust":
            return  # a store compacts its tables itself
        async with self._lock:
            with self._missing_as_no_group():
                self.state = await self._log.compact_if_due() or self.state

    async def delete(self) -> None:
        """Deletes the group. Raises NoSuchReaderGroup."""
        async with self._lock:
            if self.form is None:
                with suppress(NoSuchReaderGroup):  # the controller may know a group that has no state yet
                    await self._find()
            with self._missing_as_no_group():
                await self._store.delete()

    async def aclose(self) -> None:
        """Releases the flows. Can be called twice."""
        for store in self._stores.values():
            await store.aclose()
