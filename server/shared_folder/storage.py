"""Containers in a folder shared by the stores of a cluster, each opened by the store that owns it.

    DIR/CLUSTER             identity of the cluster, see `identity`
    DIR/containers/3/…      a container: a folder for each epoch, see `durable.fence`
    DIR/controller/…        the controller's state, in the same way

Opening claims the next epoch, which fences older owners, takes over their files, and recovers the container from
snapshot and journals. A store that finds itself fenced drops the container, and all held replies that may depend on
changes that it had not made durable.

Read-only requests are fenced, too; otherwise a process that was stalled, or is disconnected from the coordination
service, would answer with old data. A store checks for later epochs before it executes requests, unless its last check
is recent; a new opening is served only after all older checks have expired.

A container whose files are corrupt, missing, or another cluster's is refused, and tried again once they have changed.

Invariants: at most one opening of a container runs in a process, even if its caller was cancelled; a process closes an
opening before it opens the container again. When a request is executed, no other store has acknowledged a change that
its container lacks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from segstore.server.coordination import ContainerRefused, Disconnected, Opened
from segstore.server.durable import (
    MEMORY_BYTES,
    MIN_MEMORY_BYTES,
    Committers,
    ContainerEpoch,
    DirectoryDamaged,
    DirectoryForeign,
    DirectoryUnusable,
    Durability,
    Fenced,
    FencedDirectory,
    Files,
    JournalFailed,
    UnknownFormat,
    check_entries,
    current,
    epochs_of,
)
from segstore.server.store import Container

log = logging.getLogger(__name__)

T = TypeVar("T")

_JOURNAL_BYTES: Final = 8 * 1024 * 1024

_LOOK_S: Final = 0.005
"""How long a check of the epochs is valid."""

_SERVED_AFTER_S: Final = 2 * _LOOK_S
"""Time between the claim of an epoch and the first request, after which checks from before the claim have expired."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that continues while the process is stalled and, where possible, while the machine sleeps. The loop's time
may be from before the stall."""


_Traces = tuple[tuple[str, int, int, int], ...]


class SharedFolder(NamedTuple):
    """The folder of a cluster. cluster: its id. containers: number of containers."""

    path: Path
    cluster: str
    containers: int

    def container(self, container_id: int) -> Path:
        return self.path / "containers" / str(container_id)

    def make(self) -> None:
        """Creates the folders. A folder missing later was lost. Raises `OSError`."""
        for folder in (self.controller, *map(self.container, range(self.containers))):
            Files().make_folder(folder)

    @property
    def controller(self) -> Path:
        return self.path / "controller"

    def check(self, folder: Path) -> None:
        """Checks the folders of the containers and the controller.

        Raises `DirectoryDamaged` if a folder is missing, or if it or its content is neither a folder nor a regular
        file; `OSError`.
        """
        if not folder.is_dir():
            raise DirectoryDamaged(folder, folder, "it is missing", within=self.path)
        for path in (self.path, folder.parent, folder):
            check_entries(path)

    def open(
        self,
        folder: Path,
        held: tuple[int, ...],
        memory_bytes: int,
        make: Callable[[Durability], Mapping[int, Container]] = lambda _: {},
    ) -> tuple[ContainerEpoch, Durability]:
        """Claims the next epoch of a folder and recovers it; the caller starts it.

        make: returns the containers to recover into. Blocks. Raises `DataError`, `Fenced`, `OSError`.
        """
        try:
            self.check(folder)
            epoch = ContainerEpoch.claim(folder)
        except OSError as error:
            raise DirectoryUnusable(folder, error) from error
        durability = Durability(
            epoch.path,
            containers=self.containers,
            held=held,
            memory_bytes=memory_bytes,
            take_directory=lambda: FencedDirectory.adopt(
                epoch, containers=self.containers, held=held, cluster=self.cluster
            ),
            journal_bytes=_JOURNAL_BYTES,
        )
        try:
            durability.open()
            durability.recover(make(durability))
        except BaseException as error:
            durability.abandon()
            epoch.check()
            if isinstance(error, DirectoryDamaged):
                raise self._located(error, epoch) from error
            raise
        return epoch, durability

    def _located(self, error: DirectoryDamaged, epoch: ContainerEpoch) -> DirectoryDamaged:
        """Returns the error with the file's path in the previous epoch, where the file came from."""
        file, before = error.file, current(epoch.older())
        if before is not None and file.parent == epoch.path:
            file = before.path / file.name
        return DirectoryDamaged(epoch.folder, file, error.what, within=self.path)


async def result_of(opening: asyncio.Task[T], dropped: Callable[[T], None]) -> T:
    """Returns the result of an opening. If this is cancelled, the opening continues and its result is `dropped`.

    Raises Disconnected if another process was faster, and the opening's errors.
    """

    def ended(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.info("%s, whose caller was cancelled: %s", task.get_name(), error)
            return
        dropped(task.result())

    try:
        await asyncio.wait({opening})
    except asyncio.CancelledError:
        opening.add_done_callback(ended)
        raise
    try:
        return opening.result()
    except Fenced as error:
        raise Disconnected(str(error)) from error


class _Open(NamedTuple):
    epoch: ContainerEpoch
    durability: Durability
    fenced: Callable[[], Container | None]


class FolderStorage:
    """The containers of a shared folder (`ContainerStorage`), for one store, with the gate of all its replies."""

    def __init__(
        self,
        folder: SharedFolder,
        make: Callable[[int, Durability], Container],
        memory_bytes: int | None,
        *,
        on_failure: Callable[[str], None],
        before_loss: Callable[[], None],
    ) -> None:
        """make: creates an empty container that writes to a journal. memory_bytes: for all containers; None: 512 MiB.
        on_failure: called with one sentence when a container that this store owns can no longer be written to.
        before_loss: called before the `fenced` of a container that another store has opened: it must hand the replies
        to all executed requests to the gate.

        Raises ValueError if `memory_bytes` is less than the containers' minimum.
        """
        least = MIN_MEMORY_BYTES * folder.containers
        total = max(MEMORY_BYTES, least) if memory_bytes is None else memory_bytes
        if total < least:
            raise ValueError(
                f"memory_bytes must be at least {least} for {folder.containers} containers, not {memory_bytes}"
            )
        self.gate = Committers()
        self._on_failure = on_failure
        self._before_loss = before_loss
        self._folder = folder
        self._make = make
        self._memory_bytes = total // folder.containers
        self._open: dict[int, _Open] = {}
        self._ending: dict[int, asyncio.Task[Any]] = {}  # what the next opening of a container waits for
        self._closed = False
        self._looked_s = float("-inf")
        self._refused: dict[int, tuple[str, _Traces]] = {}

    async def epoch(self, container_id: int) -> int:
        present = epochs_of(self._folder.container(container_id))
        return present[-1] if present else 0

    async def open(self, container_id: int, fenced: Callable[[], Container | None]) -> Opened:
        self._end(container_id)
        while (ending := self._ending.get(container_id)) is not None:
            await asyncio.wait({ending})
            self._end(container_id)
        self._check_open(container_id)
        opening = self._begin(
            container_id, asyncio.to_thread(self._recover, container_id), f"opening container {container_id}"
        )
        try:
            epoch, durability, container = await result_of(opening, lambda made: made[1].abandon())
        except (DirectoryDamaged, DirectoryForeign, UnknownFormat) as error:
            traces = await asyncio.to_thread(self._traces, container_id)
            self._refused[container_id] = str(error), traces
            raise ContainerRefused(container_id, str(error)) from error
        try:
            self._check_open(container_id)
        except Disconnected:
            durability.abandon()
            raise
        self._refused.pop(container_id, None)
        made = self._open[container_id] = _Open(epoch, durability, fenced)
        try:
            await durability.start(lambda why: self._failed(container_id, made, why))
            self.gate.add(durability.committer)
            await asyncio.sleep(_SERVED_AFTER_S)
        except BaseException as error:
            self._end(container_id)
            if isinstance(error, Exception) and epoch.is_known_over:
                raise Disconnected(str(Fenced(epoch.folder, epoch.number))) from None
            raise
        log.info("container %d is open, epoch %d", container_id, epoch.number)
        return epoch.number, container

    def _check_open(self, container_id: int) -> None:
        if self._closed:
            raise Disconnected(f"container {container_id} is not opened: the store shuts down")

    def _begin(self, container_id: int, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Starts work that delays the next opening of a container."""

        def ended(task: asyncio.Task[T]) -> None:
            if self._ending.get(container_id) is task:
                del self._ending[container_id]

        task = asyncio.get_running_loop().create_task(work, name=name)
        self._ending[container_id] = task
        task.add_done_callback(ended)
        return task

    def _recover(self, container_id: int) -> tuple[ContainerEpoch, Durability, Container]:
        folder = self._folder
        epoch, durability = folder.open(
            folder.container(container_id),
            (container_id,),
            self._memory_bytes,
            lambda durability: {container_id: self._make(container_id, durability)},
        )
        return epoch, durability, durability.containers[container_id]

    async def refused(self, container_id: int) -> str:
        why, before = self._refused.get(container_id, ("", None))
        if why and await asyncio.to_thread(self._traces, container_id) != before:
            del self._refused[container_id]
            return ""
        return why

    def _traces(self, container_id: int) -> _Traces:
        """Returns the metadata of the files that the next opening would take over, to detect changes."""
        folder = self._folder.container(container_id)
        try:
            epochs = epochs_of(folder)
            before = current([ContainerEpoch(folder, epoch) for epoch in epochs])
            if before is None:  # only what claims do not change, or two stores would retry endlessly
                return ((str(folder), folder.stat().st_ino, bool(epochs), 0),)
            stats = [(str(path), path.stat()) for path in (before.path, *sorted(before.path.iterdir()))]
            return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
        except OSError as error:
            return ((str(error), 0, 0, 0),)

    def close(self, container_id: int, epoch: int, container: Container) -> None:
        present = self._open.get(container_id)
        if present is not None and present.epoch.number == epoch:
            self._end(container_id)

    async def aclose(self) -> None:
        """Closes all open containers; nothing can be opened afterwards."""
        self._closed = True
        for container_id in tuple(self._open):
            self._end(container_id)
        while self._ending:
            await asyncio.wait(self._ending.values())

    def fence(self) -> None:
        """Drops the containers that another store has opened, unless the last check is recent."""
        now_s = time.clock_gettime(_CLOCK)
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for container_id, opening in tuple(self._open.items()):
            try:
                if opening.epoch.is_over:
                    self._lost(container_id, opening)
            except OSError as error:
                why = f"{opening.epoch.folder} cannot be read, so it may belong to another store now: {error}"
                self._fail(why)
                return

    # --- the end of an opening --------------------------------------------------------------------------------------

    def _failed(self, container_id: int, opening: _Open, why: str) -> None:
        if self._open.get(container_id) is not opening:  # it was closed before it had written everything
            self._before_loss()
            self.gate.remove(opening.durability.committer, why)
            return
        if opening.epoch.is_known_over:
            self._lost(container_id, opening)
        else:
            self._fail(why)

    def _fail(self, why: str) -> None:
        self.gate.fail(why)
        self._on_failure(why)

    def _lost(self, container_id: int, opening: _Open) -> None:
        log.warning("container %d now belongs to another store: epoch %d has ended", container_id, opening.epoch.number)
        self._before_loss()
        opening.fenced()
        self._end(container_id)

    def _end(self, container_id: int) -> None:
        made = self._open.pop(container_id, None)
        if made is None:
            return
        before = self._ending.get(container_id)
        committer = made.durability.committer_or_none
        if committer is not None and committer.failure:
            self.gate.remove(committer, committer.failure)

        async def end() -> None:
            if before is not None:
                await asyncio.wait({before})
            try:
                await made.durability.close()
            except (OSError, JournalFailed) as error:
                log.warning("container %d was not closed cleanly: %s", container_id, error)
            if committer is not None:
                self.gate.remove(committer, f"container {container_id} now belongs to another store")

        self._begin(container_id, end(), f"closing container {container_id}")
