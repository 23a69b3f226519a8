"""Durable mode: every change of a container is in a data directory before it is reported.

`Durability` manages a process's directory. It opens the directory and recovers the snapshot, then what the journals add
to it. Then it gives each container a journal, commits their operations (`committer`), takes a snapshot when the
journals have grown, and removes what no snapshot needs. All journals of a process share one file, like the logs of a
BookKeeper server: one disk sync serves all containers, and a request that changes two of them, such as a merge, is
written atomically.

    durability = Durability(path, containers=4, held=(0, 1, 2, 3))
    store = SegmentStore(4, journal=durability.journal, pool=durability.pool)
    durability.open()
    durability.recover(store.containers)
    await durability.start()
    …
    await durability.close()

Memory for segment bytes is bounded by `memory_bytes`: chunks are dropped once a snapshot has them in files, blocks of
files are cached, and `Committer.full` makes connections wait if the disk does not keep up. Attributes, names and table
keys are kept in memory in addition.

Invariant: a file is removed only after a manifest that does not need it is on disk. A snapshot is named by the manifest
only after all batches in it are durable. Recovered data is durable before any of it is served: a process that was
killed, or whose sync failed, may have left its last group only in the page cache. Another sync does not help, because
Linux marks the pages of a failed sync as clean. So the last group is written again, to the new journal, and the old
journal ends before it. All earlier groups were synced before the next one was written, and all other files before a
manifest named them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final, ParamSpec, TypeVar
from zlib import crc32

import msgspec

from segstore.server.descriptors import are_short
from segstore.server.durable import chunk_files, snapshot
from segstore.server.durable.chunk_files import BlockCache, ChunkFile
from segstore.server.durable.committer import BATCH, Committer, records
from segstore.server.durable.data_directory import (
    DataDirectory,
    DirectoryDamaged,
    DirectoryUnusable,
    JournalFile,
    SnapshotFile,
    snapshot_name,
)
from segstore.server.durable.fence import Fenced
from segstore.server.durable.files import Files, read_regular
from segstore.server.durable.journal import (
    Group,
    Journal,
    JournalDamaged,
    JournalFailed,
    MadeJournal,
    SqliteJournal,
    file_names,
    read_journal,
)
from segstore.server.store import (
    Appended,
    AppendedCoder,
    AppendItem,
    ChunkPool,
    Container,
    DataDamaged,
    MemoryAccount,
    Operation,
    SegmentDeleted,
    SegmentMerged,
    Truncated,
    decode,
    encode,
)
from segstore.wire.names import container_of, is_index

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CONTROLLER: Final = -1
"""In place of a container's number: what the controller remembers."""

MEMORY_BYTES: Final = 512 * 1024 * 1024
MIN_MEMORY_BYTES: Final = 32 * 1024 * 1024

_JOURNAL_BYTES: Final = 32 * 1024 * 1024
_FIRST_JOURNAL_BYTES: Final = 4 * 1024 * 1024
_SNAPSHOT_BYTES: Final = 64 * 1024 * 1024
_TIDY_AFTER_S: Final = 5.0
_JOURNALS_READ: Final = 4
"""More of them make a start take a snapshot, however short they are: a store that dies early again and again, too, is
to start in bounded time."""
_REWRITTEN_BYTES: Final = 1024 * 1024
"""At start-up, at most this much of the journals' end is written again, but at least the last group. Journals that are
copied completely are removed, so a store that crashes repeatedly at start does not fill the disk."""
_RETRY_S: Final = 0.2
_DESCRIPTORS_PATIENCE_S: Final = 60.0
"""How long opening a file is retried when no descriptor is free. The current journal stays in use meanwhile."""
_OPEN_ERRORS: Final = (JournalDamaged, DataDamaged, ValueError, KeyError, msgspec.DecodeError)


class Durability:
    """A process's data directory. Construction does not access the directory.

    Attributes:
        path: path of the directory.
        pool: pool for the chunks of all segments.
        committer: once started.
        controller_image, controller_operations: the controller's recovered state, which the controller decodes.
        controller_state: returns the controller's state for a snapshot; None if there is none.
        snapshots: number of snapshots taken.
        on_failure: called with one sentence when the journal fails.
    """

    def __init__(
        self,
        path: Path,
        *,
        containers: int,
        held: Iterable[int],
        cluster: str | None = None,
        memory_bytes: int | None = None,
        files: Files | None = None,
        make_journal: Callable[[Path, Files, int], MadeJournal] = SqliteJournal,
        take_directory: Callable[[], DataDirectory] | None = None,
        journal_bytes: int = _JOURNAL_BYTES,
        memory: MemoryAccount | None = None,
    ) -> None:
        """containers, held, cluster: as for `DataDirectory.open`. memory_bytes: None is 512 MiB. memory: is charged for
        everything but the segments' bytes.

        take_directory: in place of `DataDirectory.open`. journal_bytes: about how long a journal gets.
        """
        memory_bytes = MEMORY_BYTES if memory_bytes is None else memory_bytes
        if memory_bytes < MIN_MEMORY_BYTES:
            raise ValueError(f"memory_bytes must be at least {MIN_MEMORY_BYTES}, not {memory_bytes}")
        self.path = path
        self._container_count = containers
        self._held = tuple(sorted(held))
        self._cluster = cluster
        self._file_system = files
        self._journal_maker = make_journal
        self._take_directory = take_directory
        self._journal_bytes = journal_bytes
        self._directory: DataDirectory | None = None
        self.memory_bytes = memory_bytes
        self.cache = BlockCache(memory_bytes // 8)
        self.pool = ChunkPool(max_idle_bytes=memory_bytes // 8, memory=memory, counted=False)
        self.controller_image = b""
        self.controller_operations: list[bytes] = []
        self.controller_state: Callable[[], bytes] | None = None
        self.on_failure: Callable[[str], None] = _nobody
        self.snapshots = 0
        self._images: dict[int, snapshot.Image] = {}
        self._files: dict[int, ChunkFile] = {}
        self._controller_batch = 0
        self._containers: Mapping[int, Container] = {}
        self._last = 0
        self._replayed_bytes = 0
        self._committer: Committer | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._look: asyncio.Event | None = None
        # Journals that are not written to any more, with the last batch of each.
        self._ended: list[tuple[JournalFile, int]] = []
        self._tail: deque[Group] = deque()
        self._present: list[JournalFile] = []
        self._number = 0
        self._snapshot_bytes = min(_SNAPSHOT_BYTES, memory_bytes // 6)
        self._due_bytes = self._snapshot_bytes
        self._tidy_at_s = inf
        self._tidy_after_s = _TIDY_AFTER_S
        self._asked: list[asyncio.Future[None]] = []
        self._closing = False
        self._movable = True

    # --- opening ----------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> DataDirectory:
        """The directory itself. `RuntimeError` before `open`."""
        if self._directory is None:
            raise RuntimeError(f"{self.path} is not open")
        return self._directory

    @property
    def directory_or_none(self) -> DataDirectory | None:
        """As `directory`; None before `open`, or where that could not take it."""
        return self._directory

    def open(self) -> None:
        """Take the directory, new or old. Raises `DataError`; see `DataDirectory.open`."""
        if self._take_directory is not None:
            self._directory = self._take_directory()
        else:
            self._directory = DataDirectory.open(
                self.path,
                containers=self._container_count,
                held=self._held,
                cluster=self._cluster,
                files=self._file_system,
            )
        self._read_snapshot()

    def _read_snapshot(self) -> None:
        path, found = self.directory.path, self.directory.manifest.snapshot
        if found is None:
            return
        file = path / snapshot_name(found.number)
        try:
            data = read_regular(file)
            if len(data) != found.size or crc32(data) != found.crc:
                raise DirectoryDamaged(path, file, "it does not have its checksum")
            images, other, self._files = snapshot.read(data, path, self.cache)
            for each in self._files.values():
                size = each.path.lstat().st_size
                if size != each.info.file_bytes:
                    raise DirectoryDamaged(path, each.path, f"it has {size} bytes, {each.info.file_bytes} were written")
        except FileNotFoundError as error:
            raise DirectoryDamaged(path, error.filename, "it is missing") from error
        except OSError as error:
            raise DirectoryUnusable(path, error) from error
        except _OPEN_ERRORS as error:
            raise DirectoryDamaged(path, file, str(error)) from error
        self._images = {each.container_id: each for each in images}
        if other is not None:
            self._controller_batch, self.controller_image = other

    def journal(self, container_id: int) -> ContainerJournal:
        """The journal of a container."""
        return ContainerJournal(self, container_id)

    def controller_journal(self, operation: bytes) -> None:
        """The journal of the controller."""
        self.committer.add(CONTROLLER, operation)

    @property
    def committer(self) -> Committer:
        """Says what is durable. `RuntimeError` before `start`."""
        if self._committer is None:
            raise RuntimeError("the data directory is open and not started")
        return self._committer

    @property
    def committer_or_none(self) -> Committer | None:
        """As `committer`; None before `start`."""
        return self._committer

    def recover(self, containers: Mapping[int, Container]) -> None:
        """Give empty containers the state that the directory has of them. Raises `DataError`."""
        began = perf_counter()
        directory = self.directory
        self._containers = containers
        appended: dict[int, dict[str, None]] = {each: {} for each in containers}
        last = directory.manifest.batch
        starts = {}
        try:
            for container_id, container in containers.items():
                image = self._images.get(container_id)
                starts[container_id] = last if image is None else image.batch
                if image is not None:
                    snapshot.restore(container, image, self._files)
        except _OPEN_ERRORS as error:
            file = snapshot_name(directory.manifest.snapshot.number) if directory.manifest.snapshot else "MANIFEST"
            raise DirectoryDamaged(directory.path, directory.path / file, str(error)) from error
        self._images = {}
        for entry in directory.manifest.journals:
            path = directory.path / file_names(entry.number)[0]
            try:
                last = self._replay(path, entry, last, starts, appended)
            except FileNotFoundError as error:
                raise DirectoryDamaged(directory.path, error.filename, "it is missing") from error
            except OSError as error:
                raise DirectoryUnusable(directory.path, error) from error
            except JournalDamaged as error:
                raise DirectoryDamaged(directory.path, error.path, error.what) from error
            except _OPEN_ERRORS as error:
                raise DirectoryDamaged(directory.path, path, f"{type(error).__name__}: {error}") from error
            self._ended.append((entry, last))
        if last < directory.committed:
            newest = directory.manifest.journals[-1].number if directory.manifest.journals else 0
            raise DirectoryDamaged(
                directory.path,
                directory.path / file_names(newest)[1],
                f"it ends with batch {last}, and batch {directory.committed} was committed",
            )
        self._last = last
        for container_id, container in containers.items():
            container.recovered()
            container.adopt_names(unindexed=appended[container_id])
        _drop_orphans(containers, self._container_count)
        gone = directory.remove_leftovers(directory.names_in_force(set(self._files)))
        log.info(
            "%s opened in %.2f s, %d segments%s",
            directory.path,
            perf_counter() - began,
            sum(len(each.segments) for each in containers.values()),
            f"; {len(gone)} files that a crash left behind are removed" if gone else "",
        )

    def _replay(
        self,
        path: Path,
        entry: JournalFile,
        last: int,
        starts: Mapping[int, int],
        appended: Mapping[int, dict[str, None]],
    ) -> int:
        batch, tail_bytes = last, sum(len(each.payload) for each in self._tail)
        for group in read_journal(path, entry.base_crc):
            if entry.last is not None and group.first > entry.last:
                break
            if group.first != last + 1:
                raise JournalDamaged(path, f"batch {last} is followed by batch {group.first}")
            last = group.last
            self._replayed_bytes += len(group.payload)
            self._tail.append(group)
            tail_bytes += len(group.payload)
            while len(self._tail) > 1 and tail_bytes > _REWRITTEN_BYTES:
                tail_bytes -= len(self._tail.popleft().payload)
            for log_id, data in records(group.payload):
                if log_id == BATCH:
                    batch = int.from_bytes(data)
                elif log_id == CONTROLLER:
                    if batch > self._controller_batch:
                        self.controller_operations.append(bytes(data))
                elif batch > starts[log_id]:
                    operation = decode(data)
                    self._containers[log_id].apply(operation)
                    if type(operation) is Appended or type(operation) is SegmentMerged:
                        appended[log_id][operation.segment] = None
        return last

    # --- running ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to commit. Raises `DataError`."""
        directory = self.directory
        self._number = directory.manifest.numbers
        try:
            journal, entry = self._make_first_journal()
        except (OSError, sqlite3.Error) as error:
            raise DirectoryUnusable(directory.path, error) from error
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="segstore snapshots")
        self._committer = committer = Committer(
            journal,
            directory,
            self._last,
            max_bytes=max(2 * 1024 * 1024, self.memory_bytes // 12),
            on_failure=self._failed,
            where=str(directory.path),
        )
        self._present = [entry]
        self._look = asyncio.Event()
        committer.on_look = self._look.set
        committer.batch_bytes = self._replayed_bytes
        self._saved(0)
        if len(self._ended) > _JOURNALS_READ:
            self._tidy_at_s = 0
        if self._replayed_bytes > self._snapshot_bytes:
            self._look.set()
        self._keeper = asyncio.create_task(self._keep(), name="segstore data directory")

    def _make_first_journal(self) -> tuple[Journal, JournalFile]:
        """A journal that begins with the end of the old ones; these end before that end from then on."""
        directory, tail, ended, before = self.directory, self._tail, self._ended, self.directory.manifest.batch
        first = tail[0].first if tail else self._last + 1
        self._ended = []
        for entry, last in ended:
            end = min(last, first - 1)
            if end > before:
                self._ended.append((msgspec.structs.replace(entry, last=end), end))
            before = last
        directory.manifest = msgspec.structs.replace(
            directory.manifest, journals=tuple(entry for entry, _ in self._ended)
        )
        again = Group(first, self._last, b"".join(each.payload for each in tail)) if tail else None
        made = self._make_journal(min(_FIRST_JOURNAL_BYTES, self._journal_bytes), again)
        tail.clear()
        kept = {entry.number for entry, _ in self._ended}
        with suppress(OSError):  # the next start removes them
            self._remove(name for entry, _ in ended if entry.number not in kept for name in file_names(entry.number))
        return made

    def _make_journal(self, filled_bytes: int, begin: Group | None = None) -> tuple[Journal, JournalFile]:
        """A new journal, recorded in the manifest. begin: its first group."""
        directory, before = self.directory, self._number
        number = self._next_number()
        try:
            made = self._journal_maker(directory.path / file_names(number)[0], directory.files, filled_bytes)
        except BaseException:
            self._undo(before)
            raise
        entry = JournalFile(number, made.base_crc)
        try:
            if begin is not None:
                made.append(begin)
            directory.change(journals=(*directory.manifest.journals, entry), numbers=number)
        except BaseException:
            made.close()
            raise
        return made, entry

    def _next_number(self) -> int:
        self.directory.check_place()
        self._number += 1
        return self._number

    def _undo(self, before: int) -> None:
        """Remove the files numbered after `before`, which no manifest names, and reuse the numbers."""
        with suppress(OSError):  # the next start removes them
            for number in range(before + 1, self._number + 1):
                self._remove((*file_names(number), chunk_files.file_name(number), snapshot_name(number)))
            self._number = before

    def _failed(self, why: str) -> None:
        if self._look is not None:
            self._look.set()
        for future in self._asked:
            if not future.done():
                future.set_exception(JournalFailed(why))
        self.on_failure(why)

    def tidy_soon(self) -> None:
        """Schedules a snapshot, because data may be removed from the disk."""
        if self._tidy_at_s == inf:
            self._tidy_at_s = monotonic() + self._tidy_after_s
            if self._look is not None:
                self._look.set()

    def _saved(self, up_to_bytes: int) -> None:
        """Records that a snapshot covers the first `up_to_bytes` of all batches."""
        committer = self.committer
        committer.look_at_bytes = self._due_bytes = up_to_bytes + self._snapshot_bytes
        committer.room_until_bytes = up_to_bytes + self.memory_bytes // 3
        committer.look_for_room()

    async def _in_thread(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        assert self._executor is not None
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(call, *arguments, **named))

    async def _keep(self) -> None:
        """Prepares the next journal, and takes snapshots when they are due."""
        committer, look = self.committer, self._look
        assert look is not None
        short_since: float | None = None
        while not self._closing and not committer.failure:
            look.clear()
            retry_s: float | None = None
            tidy_at_s = inf
            try:
                if not committer.has_next:
                    journal, entry = await self._in_thread(self._make_journal, self._journal_bytes)
                    self._present.append(entry)
                    committer.set_next(journal, self._switched)
                tidy_at_s = self._tidy_at_s
                if committer.batch_bytes > self._due_bytes or monotonic() >= tidy_at_s:
                    await self._take_snapshot()
                short_since = None
            except (OSError, sqlite3.Error) as error:
                if not _lacks_descriptors(error) or monotonic() - (short_since or inf) > _DESCRIPTORS_PATIENCE_S:
                    self._cannot_write(error)
                else:
                    if short_since is None:
                        short_since = monotonic()
                        log.warning("%s waits for a file descriptor: %s", self.directory.path, error)
                    self._tidy_at_s = min(tidy_at_s, self._tidy_at_s)  # a snapshot that was due still is
                    retry_s = _RETRY_S
            except JournalFailed:  # said already
                return
            except Exception as error:  # a silent failure would let the journals grow without bound
                log.exception("unexpected error in a snapshot of %s", self.directory.path)
                self._cannot_write(error)
            wait_s = retry_s
            if wait_s is None and self._tidy_at_s != inf:
                wait_s = max(0.0, self._tidy_at_s - monotonic())
            try:
                async with asyncio.timeout(wait_s):
                    await look.wait()
            except TimeoutError:
                continue

    def _cannot_write(self, error: Exception) -> None:
        if isinstance(error, Fenced) or self.directory.is_over:
            self.committer.fail(f"{self.directory.path} is another store's now: {error}", logging.WARNING)
            return
        self.committer.fail(
            f"{self.directory.path} cannot be written to ({error}): nothing is acknowledged any more; "
            "what was acknowledged is there when the store is started again"
        )

    def _switched(self, last: int) -> None:
        self._ended.append((self._present.pop(0), last))
        if self._look is not None:
            self._look.set()

    # --- snapshots --------------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Takes a snapshot now, and waits for it. Raises `JournalFailed`."""
        if self._look is None or self.committer.failure:
            raise JournalFailed(self.committer.failure or "the data directory is not started")
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._tidy_at_s = 0
        self._look.set()
        await asked

    async def _take_snapshot(self, *, ending: bool = False) -> None:
        """Takes a snapshot, and removes files that are no longer needed. ending: no journal is written to any more."""
        began, committer, directory = perf_counter(), self.committer, self.directory
        self._tidy_at_s = inf
        asked = tuple(self._asked)
        containers = tuple(self._containers.values())
        anew = snapshot.sparse(containers) if self._movable else set()
        up_to_bytes = committer.batch_bytes
        captured = []
        for container in containers:
            captured.append(snapshot.capture(container, committer.hand_over(), anew))
            await asyncio.sleep(0)
        other = None
        if self.controller_state is not None:
            batch = committer.hand_over()
            other = batch, self.controller_state()
        try:
            file, saved = await self._in_thread(self._save, captured, other)
        except DataDamaged as error:
            # The corrupt file stays; a snapshot that rewrites no chunk files does not read it.
            log.error("%s", error)
            self._movable = False
            self.tidy_soon()
            return
        await committer.settled()
        batches = [each.header.batch for each in captured] + ([] if other is None else [other[0]])
        first = min(batches, default=self._last)
        done = [(entry, last) for entry, last in self._ended if last <= first]
        manifest = directory.manifest
        gone = {entry.number for entry, _ in done} | ({each.number for each in self._present} if ending else set())
        await self._in_thread(
            directory.change,
            snapshot=file,
            journals=tuple(each for each in manifest.journals if each.number not in gone),
            batch=committer.committed if ending else (done[-1][1] if done else manifest.batch),
            numbers=self._number,
        )
        self._ended = [each for each in self._ended if each not in done]
        snapshot.install(captured, saved)
        live = snapshot.live_files(containers)
        dead = {number for number in self._files if number not in saved.files and number not in live}
        for number in dead:
            self.cache.forget(number, self._files[number].info.length)
        self._files = {number: each for number, each in {**self._files, **saved.files}.items() if number not in dead}
        self._saved(up_to_bytes)
        self.snapshots += 1
        names = [each for number in gone for each in file_names(number)]
        names += [chunk_files.file_name(number) for number in dead]
        if manifest.snapshot is not None:
            names.append(snapshot_name(manifest.snapshot.number))
        await self._in_thread(self._remove, names)
        spent = perf_counter() - began
        self._tidy_after_s = max(_TIDY_AFTER_S, 20 * spent)
        self._asked = [each for each in self._asked if each not in asked]
        for future in asked:
            if not future.done():
                future.set_result(None)
        log.debug("snapshot %d of %s in %.2f s", file.number, directory.path, spent)

    def _save(
        self, captured: list[snapshot.Captured], other: tuple[int, bytes] | None
    ) -> tuple[SnapshotFile, snapshot.Saved]:
        directory, before = self.directory, self._number
        number = self._next_number()
        try:
            saved = snapshot.save(
                directory.files, directory.path / snapshot_name(number), captured, other, self.cache, self._next_number
            )
        except BaseException:
            self._undo(before)
            raise
        return SnapshotFile(number, saved.size, saved.crc), saved

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.directory.files.remove(self.directory.path / name)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self, *, last_snapshot: bool = True) -> None:
        """Commits what is pending, takes a last snapshot, and releases the directory. Can be called twice.

        Without the snapshot, the directory is left as after a crash.
        """
        keeper, self._keeper, self._closing = self._keeper, None, True
        committer = self._committer
        try:
            if keeper is not None and self._look is not None:
                self._look.set()
                await keeper
            if committer is not None and self._executor is not None:
                if last_snapshot:
                    for container in self._containers.values():
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

    __slots__ = ("_coder", "_container_id", "_durability")

    def __init__(self, durability: Durability, container_id: int) -> None:
        self._durability = durability
        self._container_id = container_id
        self._coder = AppendedCoder(container_id)

    def __call__(self, operation: Operation) -> None:
        """Records an executed operation."""
        self._durability.committer.add(self._container_id, encode(operation))
        if type(operation) is SegmentDeleted or type(operation) is Truncated:
            self._durability.tidy_soon()

    def appended(self, segment: str, rows: Sequence[AppendItem], now_ms: int, writer: bytes) -> None:
        """An append was carried out; see `operations.AppendJournal`."""
        record = self._coder.encode(segment, rows, now_ms, writer)
        self._durability.committer.add_record(record)


def _lacks_descriptors(error: OSError | sqlite3.Error) -> bool:
    """Whether a file could not be opened because this process, or the system, has too many open files."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    # SQLite says the same of a folder that is gone, or that it may not write to.
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CANTOPEN and are_short()


def _drop_orphans(containers: Mapping[int, Container], count: int) -> None:
    """Drops indexes whose segments no longer exist. A crash between the two deletions leaves them, and directories of
    earlier versions have one for each merge. Nothing is written: they are dropped at each start until the next
    snapshot.
    """
    for container in containers.values():
        for index, found in list(container.segments.items()):
            if not is_index(index) or found.index_entry_size is None:
                continue
            name = index.removesuffix("#index")
            if (
                not any(name in each.segments for each in containers.values())
                and container_of(name, count) in containers
            ):
                container.apply(SegmentDeleted(index, retired=False))


def _nobody(_: str) -> None:
    """No-op, the default callback."""
