"""Durable mode: every change of a container is in a data directory before its reply is sent.

`Durability` opens a process's directory, recovers its state (`recovery`), gives each container a journal, commits
operations (`committer`), takes a snapshot (`snapshot`) when the journals have grown, and removes unneeded files
(`journal`). All journals of a process share one file, like the logs of a BookKeeper server: one disk sync serves all
containers, and a request that changes two containers, such as a merge, is written atomically.

    durability = Durability(path, containers=4, held=(0, 1, 2, 3))
    store = SegmentStore(4, journal=durability.journal, pool=durability.pool)
    durability.open()
    durability.recover(store.containers)
    await durability.start()
    …
    await durability.close()

Memory for segment bytes is bounded by `memory_bytes`: chunks are dropped once a snapshot has them in files, blocks of
files are cached, and `Committer.full` makes connections wait if the disk does not keep up. In addition, all attributes,
names and table keys are in memory.

Invariant: a file is removed only after a manifest that does not need it is on disk. A snapshot is named by the manifest
only after all batches in it are durable. Recovered data is durable before it is served: the last group of a killed
process, or of a process whose sync failed, may be only in a cache. Another sync does not help, because Linux marks the
pages of a failed sync as clean. So the last group is written again, to the new journal, and the old journal ends before
it. Each earlier group was synced before the next group was written, and every other file before a manifest named it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final, ParamSpec, TypeVar

from segstore.server.durable import snapshot
from segstore.server.durable.chunk_files import BlockCache, ChunkFile
from segstore.server.durable.committer import Committer, failure_of
from segstore.server.durable.data_directory import DataDirectory, DirectoryUnusable, SnapshotFile
from segstore.server.durable.fence import FencedDirectory
from segstore.server.durable.files import Files, file_name
from segstore.server.durable.journal import JournalFailed, JournalMaker, Journals, JournalWriter
from segstore.server.durable.recovery import CONTROLLER, Recovery
from segstore.server.store import (
    ChunkPool,
    Container,
    DataDamaged,
    MemoryAccount,
    Operation,
    SegmentDeleted,
    Truncated,
    encode,
)

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MEMORY_BYTES: Final = 512 * 1024 * 1024
MIN_MEMORY_BYTES: Final = 32 * 1024 * 1024

_JOURNAL_BYTES: Final = 32 * 1024 * 1024
_FIRST_JOURNAL_BYTES: Final = 4 * 1024 * 1024
_SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
_TIDY_AFTER_S: Final = 5.0
_JOURNALS_READ: Final = 4
"""More of them make a start take a snapshot, however short they are: a store that dies early again and again, too, is
to start in bounded time."""
_RETRY_S: Final = 0.2
_DESCRIPTORS_PATIENCE_S: Final = 60.0
"""How long opening a file is retried when no descriptor is free. The current journal stays in use meanwhile."""


class Durability:
    """A process's data directory. Construction does not access the directory.

    Attributes:
        pool: for the chunks of all segments.
        containers: the containers that the state was recovered into, by number.
        controller_image, controller_operations: the controller's recovered state, which the controller decodes.
        controller_state: returns the controller's state for a snapshot; None without a controller.
        snapshots: number of snapshots taken.
    """

    def __init__(
        self,
        path: Path,
        *,
        containers: int,
        held: Iterable[int],
        memory_bytes: int | None = None,
        files: Files | None = None,
        make_journal: JournalMaker = JournalWriter,
        take_directory: Callable[[], DataDirectory] | None = None,
        journal_bytes: int = _JOURNAL_BYTES,
        memory: MemoryAccount | None = None,
    ) -> None:
        """containers, held: as for `DataDirectory.open`. memory_bytes: None is 512 MiB. memory: is charged for
        everything but the segments' bytes.

        take_directory: replaces `DataDirectory.open`. journal_bytes: approximate size at which a journal is full.
        """
        memory_bytes = MEMORY_BYTES if memory_bytes is None else memory_bytes
        if memory_bytes < MIN_MEMORY_BYTES:
            raise ValueError(f"memory_bytes must be at least {MIN_MEMORY_BYTES}, not {memory_bytes}")
        self.path = path
        self._take_directory = take_directory or partial(
            DataDirectory.open, path, containers=containers, held=tuple(sorted(held)), files=files
        )
        self._journal_maker = make_journal
        self._journal_bytes = journal_bytes
        self._directory: DataDirectory | None = None
        self.memory_bytes = memory_bytes
        self.cache = BlockCache(memory_bytes // 8)
        self.pool = ChunkPool(max_idle_bytes=memory_bytes // 8, memory=memory, counted=False)
        self.controller_image = b""
        self.controller_operations: list[bytes] = []
        self.controller_state: Callable[[], bytes] | None = None
        self.snapshots = 0
        self._recovery: Recovery | None = None  # until the start
        self._chunks: dict[int, ChunkFile] = {}
        self.containers: Mapping[int, Container] = {}
        self._committer: Committer | None = None
        self._journals: Journals | None = None
        self._on_failure: Callable[[str], None] | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._look = asyncio.Event()
        self._snapshot_bytes = min(_SNAPSHOT_BYTES, memory_bytes // 6)
        self._due_bytes = self._snapshot_bytes
        self._tidy_at_s = inf
        self._tidy_after_s = _TIDY_AFTER_S
        self._closing = False
        self._movable = True

    # --- opening ----------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> DataDirectory:
        """The directory itself. `RuntimeError` before `open`."""
        if self._directory is None:
            raise RuntimeError(f"{self.path} is not open")
        return self._directory

    def open(self) -> None:
        """Takes the directory, new or old. Raises `DataError`; see `DataDirectory.open`."""
        self._directory = self._take_directory()
        self._recovery = Recovery(self._directory, self.cache)

    def journal(self, container_id: int) -> ContainerJournal:
        """The journal of a container."""
        return ContainerJournal(self, container_id)

    def controller_journal(self, operation: bytes) -> None:
        """The journal of the controller."""
        self.committer.add(CONTROLLER, operation)

    @property
    def committer(self) -> Committer:
        """Returns the committer, which reports durability. Raises `RuntimeError` before `start`."""
        if self._committer is None:
            raise RuntimeError("the data directory is open and not started")
        return self._committer

    @property
    def committer_or_none(self) -> Committer | None:
        """Returns `committer`; None before `start`."""
        return self._committer

    def recover(self, containers: Mapping[int, Container]) -> None:
        """Restores the directory's state into empty containers. Raises `DataError`."""
        assert self._recovery is not None, "open comes first"
        self._recovery.fill(containers)
        self.containers, self._chunks = containers, self._recovery.chunks
        self.controller_image = self._recovery.controller_image
        self.controller_operations = self._recovery.controller_operations

    # --- running ----------------------------------------------------------------------------------------------------

    async def start(self, on_failure: Callable[[str], None] | None = None) -> None:
        """Begins to commit. Raises `DataError`. on_failure: called with one sentence when the journal fails."""
        directory, recovery = self.directory, self._recovery
        assert recovery is not None, "recover comes first"
        self._recovery = None
        self._on_failure = on_failure
        journals = self._journals = Journals(directory, self._journal_maker)
        try:
            journal = journals.make_first(recovery, min(_FIRST_JOURNAL_BYTES, self._journal_bytes))
        except OSError as error:
            raise DirectoryUnusable(directory.path, error) from error

        def switched(last: int) -> None:
            journals.switched(last)
            self._look.set()

        self._executor = ThreadPoolExecutor(1, thread_name_prefix="segstore snapshots")
        self._committer = committer = Committer(
            journal,
            directory,
            recovery.last,
            max_bytes=self.memory_bytes // 12,
            on_failure=self._failed,
            on_look=self._look.set,
            on_switch=switched,
        )
        committer.batch_bytes = recovery.replayed_bytes
        self._saved(0)
        if len(journals.ended) > _JOURNALS_READ:
            self._tidy_at_s = 0
        self._keeper = asyncio.create_task(self._keep(journals), name="segstore data directory")

    def _failed(self, why: str) -> None:
        self._look.set()
        if self._on_failure is not None:
            self._on_failure(why)

    def tidy_soon(self) -> None:
        """Schedules a snapshot, because data may be removed from the disk."""
        if self._tidy_at_s == inf:
            self._tidy_at_s = monotonic() + self._tidy_after_s
            self._look.set()

    def _saved(self, up_to_bytes: int) -> None:
        """Records that a snapshot covers the first `up_to_bytes` of all batches."""
        committer = self.committer
        committer.look_at_bytes = self._due_bytes = up_to_bytes + self._snapshot_bytes
        committer.room_until_bytes = up_to_bytes + self.memory_bytes // 4
        committer.look_for_room()

    async def _in_thread(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        assert self._executor is not None
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(call, *arguments, **named))

    async def _keep(self, journals: Journals) -> None:
        """Prepares the next journal, and takes snapshots when they are due."""
        committer, look = self.committer, self._look
        short_since: float | None = None
        while not self._closing and not committer.failure:
            look.clear()
            retry_s: float | None = None
            tidy_at_s = inf
            try:
                if committer.next is None:
                    journal, entry = await self._in_thread(journals.make, self._journal_bytes)
                    journals.present.append(entry)
                    committer.next = journal
                tidy_at_s = self._tidy_at_s
                if committer.batch_bytes > self._due_bytes or monotonic() >= tidy_at_s:
                    await self._take_snapshot()
                short_since = None
            except OSError as error:
                if (
                    error.errno not in (errno.EMFILE, errno.ENFILE)
                    or monotonic() - (short_since or inf) > _DESCRIPTORS_PATIENCE_S
                ):
                    committer.fail(*failure_of(self.directory, error))
                else:
                    if short_since is None:
                        short_since = monotonic()
                        log.warning("%s waits for a file descriptor: %s", self.directory.path, error)
                    self._tidy_at_s = min(tidy_at_s, self._tidy_at_s)  # a snapshot that was due still is
                    retry_s = _RETRY_S
            except JournalFailed:  # reported already
                return
            except Exception as error:  # a silent failure would let the journals grow without bound
                log.exception("unexpected error in a snapshot of %s", self.directory.path)
                committer.fail(*failure_of(self.directory, error))
            wait_s = retry_s
            if wait_s is None and self._tidy_at_s != inf:
                wait_s = max(0.0, self._tidy_at_s - monotonic())
            try:
                async with asyncio.timeout(wait_s):
                    await look.wait()
            except TimeoutError:
                continue

    # --- snapshots --------------------------------------------------------------------------------------------------

    async def _take_snapshot(self, *, ending: bool = False) -> None:
        """Takes a snapshot, and removes files that are no longer needed. ending: no journal is written to any more."""
        began, committer, directory, journals = perf_counter(), self.committer, self.directory, self._journals
        assert journals is not None
        self._tidy_at_s = inf
        containers = tuple(self.containers.values())
        up_to_bytes = committer.batch_bytes
        captured, controller = await self._capture(containers)
        try:
            file, saved = await self._in_thread(self._save, journals, captured, controller)
        except DataDamaged as error:
            # The corrupt file stays; a snapshot that rewrites no chunk files does not read it.
            log.error("%s", error)
            self._movable = False
            self.tidy_soon()
            return
        await committer.settled()
        batches = [container.header.batch for container in captured] + ([] if controller is None else [controller[0]])
        first = min(batches, default=committer.committed)
        done = [(entry, last) for entry, last in journals.ended if last <= first]
        manifest = directory.manifest
        gone = {entry.number for entry in ([entry for entry, _ in done] + (journals.present if ending else []))}
        await self._in_thread(
            directory.change,
            snapshot=file,
            journals=tuple(journal for journal in manifest.journals if journal.number not in gone),
            batch=committer.committed if ending else (done[-1][1] if done else manifest.batch),
            numbers=journals.number,
        )
        journals.ended = [journal for journal in journals.ended if journal not in done]
        snapshot.install(captured, saved)
        unreferenced = self._forget_unreferenced(containers, saved)
        self._saved(up_to_bytes)
        names = [journal.name for journal in manifest.journals if journal.number in gone]
        names += [file_name("chunk", number) for number in unreferenced]
        if manifest.snapshot is not None:
            names.append(manifest.snapshot.name)
        await self._in_thread(journals.remove, names)
        spent = perf_counter() - began
        self._tidy_after_s = max(_TIDY_AFTER_S, 20 * spent)
        self.snapshots += 1
        log.debug("snapshot %d of %s in %.2f s", file.number, directory.path, spent)

    async def _capture(
        self, containers: Iterable[Container]
    ) -> tuple[list[snapshot.Captured], tuple[int, bytes] | None]:
        """Captures the containers, one a loop iteration, and the controller's state with the number of its batch."""
        rewritten = snapshot.sparse(containers) if self._movable else set()
        captured = []
        for container in containers:
            captured.append(snapshot.capture(container, self.committer.hand_over(), rewritten))
            await asyncio.sleep(0)
        if self.controller_state is None:
            return captured, None
        return captured, (self.committer.hand_over(), self.controller_state())

    def _forget_unreferenced(self, containers: Iterable[Container], saved: snapshot.Saved) -> set[int]:
        """Drops the chunk files that no segment uses any more; returns their numbers."""
        dead = self._chunks.keys() - saved.files.keys() - snapshot.usage_of(containers).keys()
        self._chunks = {number: file for number, file in {**self._chunks, **saved.files}.items() if number not in dead}
        return dead

    def _save(
        self, journals: Journals, captured: list[snapshot.Captured], controller: tuple[int, bytes] | None
    ) -> tuple[SnapshotFile, snapshot.Saved]:
        files, before = self.directory.files, journals.number
        number = journals.next_number()
        path = self.directory.path / file_name("snapshot", number)
        try:
            saved = snapshot.save(files, path, captured, controller, self.cache, journals.next_number)
        except BaseException:
            journals.undo(before)
            raise
        return SnapshotFile(number, saved.size, saved.crc), saved

    # --- the end ----------------------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Abandons an opening of an epoch that was not started, and removes its files."""
        if isinstance(self._directory, FencedDirectory):
            self._directory.abandon()

    async def close(self, *, last_snapshot: bool = True) -> None:
        """Commits pending operations, takes a last snapshot, and releases the directory. Can be called twice.

        Without the snapshot, the directory is left as after a crash.
        """
        keeper, self._keeper, self._closing = self._keeper, None, True
        committer = self._committer
        try:
            if keeper is not None:
                self._look.set()
                await keeper
            if committer is not None and self._executor is not None:
                if last_snapshot:
                    for container in self.containers.values():
                        container.settle_index()
                await committer.close()
                if last_snapshot and not committer.failure:
                    try:
                        await self._take_snapshot(ending=True)
                    except (OSError, JournalFailed) as error:
                        # Everything is in the journals; they are read when the directory is opened again.
                        level = logging.INFO if self.directory.is_over else logging.ERROR
                        log.log(level, "%s was closed without a last snapshot: %s", self.directory.path, error)
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None
            if self._directory is not None:
                self._directory.close()


class ContainerJournal:
    """The journal of one container."""

    __slots__ = ("_container_id", "_durability")

    def __init__(self, durability: Durability, container_id: int) -> None:
        self._durability = durability
        self._container_id = container_id

    def __call__(self, operation: Operation) -> None:
        """Records an executed operation."""
        self._durability.committer.add(self._container_id, encode(operation))
        if type(operation) is SegmentDeleted or type(operation) is Truncated:
            self._durability.tidy_soon()

    @property
    def add_record(self) -> Callable[[bytes], None]:
        """The function that records executed appends."""
        return self._durability.committer.add_record
