"""Containers in a folder shared by the stores of a cluster, each opened by the store that owns it.

    DIR/CLUSTER             which cluster's it is, see `processes_identity`
    DIR/containers/3/…      a container: a folder for each epoch, see `store.fence`
    DIR/controller/…        what the controller remembers, in the same way

Opening claims the next epoch, which fences older owners, takes their files over, and recovers the container from
snapshot and journals. A store that finds itself fenced drops the container, and with it all answers that may tell of
what it had not made durable.

What is asked of a container without changing it is fenced too, or a process that stood still, or has no line to the
coordination service, would answer with what was so before. A store looks whether later epochs have begun before it
carries anything out, unless it has just looked; an opening is served only once such a look is good no more.

A container whose files are not what was written, or are another cluster's, or are missing, is refused, and looked at
again once somebody has changed them.

Invariants: at most one opening of a container is at work in a process, also when nobody waits for it any more; what
this process has open, it closes before it opens it again. When a request is carried out, nobody else has acknowledged a
change that its container does not have.
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
    DirectoryDamaged,
    DirectoryForeign,
    DirectoryNewer,
    DirectoryUnusable,
    Durability,
    Epoch,
    Fenced,
    FencedDirectory,
    Files,
    JournalFailed,
    check_entries,
    current,
    epochs_of,
)
from segstore.server.store import Container

log = logging.getLogger(__name__)

T = TypeVar("T")

_JOURNAL_BYTES: Final = 8 * 1024 * 1024

_LOOK_S: Final = 0.005
"""So long a look at the epochs is good for."""

_SERVED_AFTER_S: Final = 2 * _LOOK_S
"""Between the claim of an epoch and the first request: then no older owner goes by a look from before the claim."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the process stands still, and where it can while the machine does. The loop's time may be that of
before the process stood still."""


_Traces = tuple[tuple[str, int, int, int], ...]


class SharedFolder(NamedTuple):
    """The folder of a cluster. cluster: its id. containers: how many it has."""

    path: Path
    cluster: str
    containers: int

    def container(self, container_id: int) -> Path:
        """The folder of a container."""
        return self.path / "containers" / str(container_id)

    def make(self) -> None:
        """Makes the folders, which are there from then on: one that is missing was lost. Raises `OSError`."""
        for each in (self.controller, *map(self.container, range(self.containers))):
            Files().make_folder(each)

    @property
    def controller(self) -> Path:
        """The folder of the controller."""
        return self.path / "controller"

    def check(self, folder: Path) -> None:
        """Checks the folders of the containers and the controller.

        Raises `DirectoryDamaged` if one is missing, or if it or its content is neither a folder nor a regular file;
        `OSError`.
        """
        if not folder.is_dir():
            raise DirectoryDamaged(folder, folder, "it is missing", within=self.path)
        for each in (self.path, folder.parent, folder):
            check_entries(each)

    def open(self, folder: Path, held: tuple[int, ...], memory_bytes: int) -> tuple[Epoch, Durability]:
        """Claims the next epoch of a folder and opens its directory; the rest is up to the caller.

        Blocks. Raises `DataError`, `Fenced`, `OSError`.
        """
        try:
            self.check(folder)
            epoch = Epoch.claim(folder)
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
        except BaseException as error:
            drop(durability)
            if isinstance(error, DirectoryDamaged):
                raise self._located(error, epoch) from error
            raise
        return epoch, durability

    def recover(self, epoch: Epoch, durability: Durability, containers: Mapping[int, Container]) -> None:
        """Gives containers what an opening has of them; what cannot be recovered is closed.

        Blocks. Raises `DataError`, `Fenced`, `OSError`.
        """
        try:
            durability.recover(containers)
        except BaseException as error:
            drop(durability)
            epoch.check()
            if isinstance(error, DirectoryDamaged):
                raise self._located(error, epoch) from error
            raise

    def _located(self, error: DirectoryDamaged, epoch: Epoch) -> DirectoryDamaged:
        """The error with the file as the epoch before has it: what was taken over are the same files."""
        file, before = error.file, current(epoch.older())
        if before is not None and file.parent == epoch.path:
            file = before.path / file.name
        return DirectoryDamaged(epoch.folder, file, error.what, within=self.path)


def drop(durability: Durability) -> None:
    """Gives up what was opened and not started: it comes to nothing, and nothing of it is left."""
    directory = durability.directory_or_none
    if isinstance(directory, FencedDirectory):
        directory.abandon()


async def result_of(opening: asyncio.Task[T], dropped: Callable[[T], None]) -> T:
    """What an opening gives. It goes on when this is cancelled, and what it gives then is `dropped`."""

    def ended(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.info("%s, which nobody waited for any more: %s", task.get_name(), error)
            return
        dropped(task.result())

    try:
        await asyncio.wait({opening})
    except asyncio.CancelledError:
        opening.add_done_callback(ended)
        raise
    return opening.result()


class _Open(NamedTuple):
    epoch: Epoch
    durability: Durability
    fenced: Callable[[], Container | None]


class FolderStorage:
    """The containers of a shared folder (`ContainerStorage`), for one store.

    Attributes:
        gate: says what is durable of all that this store has open.
        on_failure: is called with one sentence when a container cannot be written to any more, though it is this
            store's.
        on_lost: is called with the number of a container that was found to be another's, which `fenced` was called
            for before.
        before_loss: is called before that: whatever was carried out is to be under way to its peer, behind the gate.
    """

    def __init__(self, folder: SharedFolder, make: Callable[[int, Durability], Container], memory_bytes: int | None):
        """make: an empty container that writes to a journal. memory_bytes: for all containers; None is 512 MiB.

        Raises ValueError for less than each container needs.
        """
        least = MIN_MEMORY_BYTES * folder.containers
        total = max(MEMORY_BYTES, least) if memory_bytes is None else memory_bytes
        if total < least:
            raise ValueError(
                f"memory_bytes must be at least {least} for {folder.containers} containers, not {memory_bytes}"
            )
        self.gate = Committers()
        self.on_failure: Callable[[str], None] = _nobody
        self.on_lost: Callable[[int], None] = _nobody
        self.before_loss: Callable[[], None] = _nothing
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
            epoch, durability, container = await result_of(opening, lambda made: drop(made[1]))
        except Fenced as error:
            raise Disconnected(str(error)) from error
        except (DirectoryDamaged, DirectoryForeign, DirectoryNewer) as error:
            traces = await asyncio.to_thread(self._traces, container_id)
            self._refused[container_id] = str(error), traces
            raise ContainerRefused(container_id, str(error)) from error
        try:
            self._check_open(container_id)
        except Disconnected:
            drop(durability)
            raise
        self._refused.pop(container_id, None)
        made = self._open[container_id] = _Open(epoch, durability, fenced)
        try:
            await durability.start()
            durability.on_failure = lambda why: self._failed(container_id, made, why)
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
            raise Disconnected(f"container {container_id} is not opened any more: the store shuts down")

    def _begin(self, container_id: int, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Has something done that the next opening of a container waits for."""

        def ended(task: asyncio.Task[T]) -> None:
            if self._ending.get(container_id) is task:
                del self._ending[container_id]

        task = asyncio.get_running_loop().create_task(work, name=name)
        self._ending[container_id] = task
        task.add_done_callback(ended)
        return task

    def _recover(self, container_id: int) -> tuple[Epoch, Durability, Container]:
        folder = self._folder
        epoch, durability = folder.open(folder.container(container_id), (container_id,), self._memory_bytes)
        container = self._make(container_id, durability)
        folder.recover(epoch, durability, {container_id: container})
        return epoch, durability, container

    async def refused(self, container_id: int) -> str:
        why, before = self._refused.get(container_id, ("", None))
        if why and await asyncio.to_thread(self._traces, container_id) != before:
            del self._refused[container_id]
            return ""
        return why

    def _traces(self, container_id: int) -> _Traces:
        """What is seen of what the next opening would take over, to be compared."""
        folder = self._folder.container(container_id)
        try:
            epochs = epochs_of(folder)
            before = current([Epoch(folder, each) for each in epochs])
            if before is None:  # nothing that another one's claim changes, or two stores would try for ever
                return ((str(folder), folder.stat().st_ino, bool(epochs), 0),)
            stats = [(str(each), each.stat()) for each in (before.path, *sorted(before.path.iterdir()))]
            return tuple((name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in stats)
        except OSError as error:
            return ((str(error), 0, 0, 0),)

    def close(self, container_id: int, epoch: int, container: Container) -> None:
        present = self._open.get(container_id)
        if present is not None and present.epoch.number == epoch:
            self._end(container_id)

    async def aclose(self) -> None:
        """Closes all that is open; nothing can be opened after that."""
        self._closed = True
        for container_id in tuple(self._open):
            self._end(container_id)
        while self._ending:
            await asyncio.wait(self._ending.values())

    def fence(self) -> None:
        """Drops the containers that another store has opened, if that was not looked at just now."""
        now_s = time.clock_gettime(_CLOCK)
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for container_id, made in tuple(self._open.items()):
            try:
                if made.epoch.is_over:
                    self._lost(container_id, made)
            except OSError as error:
                why = f"{made.epoch.folder} cannot be looked at, so it may be another store's now: {error}"
                self.gate.fail(why)
                self.on_failure(why)
                return

    # --- the end of an opening --------------------------------------------------------------------------------------

    def _failed(self, container_id: int, made: _Open, why: str) -> None:
        if self._open.get(container_id) is not made:  # it was given back before it had written all
            self.before_loss()
            self.gate.remove(made.durability.committer, why)
            return
        if not made.epoch.is_known_over:
            self.gate.fail(why)
            self.on_failure(why)
            return
        self._lost(container_id, made)

    def _lost(self, container_id: int, made: _Open) -> None:
        log.warning("container %d is another store's now: epoch %d is over", container_id, made.epoch.number)
        self.before_loss()
        made.fenced()
        self._end(container_id)
        self.on_lost(container_id)

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
                log.warning("container %d was not closed well: %s", container_id, error)
            if committer is not None:
                self.gate.remove(committer, f"container {container_id} is another store's now")

        self._begin(container_id, end(), f"closing container {container_id}")


def _nobody(_: object) -> None:
    """Nobody wants to know."""


def _nothing() -> None:
    """There is nothing to be done before."""
