"""Histories of a directory, life after life, and what each image of a loss of power must hold.

A life is a forked process that the recorder watches. It closes its directory, or is killed between two calls, or has a
sync that fails. The next life opens the directory as the page cache has it or, at times, as a loss of power left it. At
random moments an image is written, opened and recovered. It must open, as the same cluster's. It must hold a state that
was there after some batch: not before the last one that was acknowledged, nor before the one that its life has served
from the beginning.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import signal
import traceback
from pathlib import Path

from segstore.server.store.data_directory import DataError
from tests.power_loss.disk import Disk, Record, records
from tests.power_loss.life import live, open_data
from tests.power_loss.recording import begin

__all__ = ["History"]

_RECORDS = (10, 60, 600)
"""Calls, about, until a directory is made, until it is recovered, and until a life ends; as many are killed in each."""
_SYNCS = (4, 60)
"""Syncs, about, until a directory is made, and until a life ends."""


class History:
    """A directory and what is known of it.

    Attributes:
        lives, kills, failed_syncs: how many lives there were, and how many of them ended so.
        images: how many were opened.
        faults: what was wrong with them, one sentence each.
    """

    def __init__(self, kind: str, seed: int, folder: Path) -> None:
        """kind: as in `life`. folder: to work in, new; what was wrong with images is left in it."""
        folder.mkdir()
        self.lives = self.kills = self.failed_syncs = self.images = 0
        self.faults: list[str] = []
        self._kind = kind
        self._chance = random.Random(seed)
        self._folder = folder
        self._root = folder / "life-0"
        self._root.mkdir()
        self._cluster = ""
        # The states after batches; those from the floor on may be found. The present life began with `_served`.
        self._states = [asyncio.run(_open(kind, folder / "empty"))[0]]
        self._floor = self._served = 0

    def run(self, lives: int, images: int) -> None:
        """Live so many lives, and open so many images of each."""
        disk = Disk(self._root)
        for _ in range(lives):
            log = self._live()
            moments = sorted(self._chance.randrange(len(log)) for _ in range(images))
            marks = self._root / "marks"
            marks_inode = marks.stat().st_ino if marks.exists() else 0
            for number, record in enumerate(log):
                disk.feed(record)
                if record.kind == "W" and record.inode == marks_inode:
                    self._know(**json.loads(record.data))
                while moments and moments[0] == number:
                    moments.pop(0)
                    self._look(disk, f"life {self.lives}, record {number} of {len(log)}")
            self._compare(disk)
            if self._chance.random() < 0.2:
                self._root = self._folder / f"life-{self.lives}"
                disk.image(self._chance, self._root)
                disk = Disk(self._root)

    # --- lives ------------------------------------------------------------------------------------------------------

    def _live(self) -> tuple[Record, ...]:
        """One life in a process of its own; what it asked of the disk."""
        chance, self.lives = self._chance, self.lives + 1
        kill_at = kill_sync = fail_sync = 0
        match chance.choices(["killed", "killed in a sync", "failed sync", ""], [3, 3, 3, 1])[0]:
            case "killed":
                kill_at = chance.randint(1, chance.choice(_RECORDS))
            case "killed in a sync":
                kill_sync = chance.randint(1, chance.choice(_SYNCS))
            case "failed sync":
                fail_sync = chance.randint(1, _SYNCS[-1])
        seed, ticks = chance.randrange(1 << 30), chance.randint(1, 120)
        log = self._folder / "log"
        log.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            try:
                logging.disable()
                begin(self._root, log, kill_at=kill_at, kill_sync=kill_sync, fail_sync=fail_sync)
                asyncio.run(live(self._kind, self._root, seed, ticks))
                os._exit(0)
            except BaseException as error:  # noqa: BLE001 - the child must not go on in its parent's code
                if fail_sync and isinstance(error, (DataError, OSError)):
                    os._exit(0)
                traceback.print_exception(error)
                os._exit(1)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if status and not (killed and (kill_at or kill_sync)):
            raise AssertionError(f"a life ended with status {status}")
        found = tuple(records(log.read_bytes()))
        self.kills += killed
        self.failed_syncs += any(each.kind == "F" for each in found)
        return found

    def _know(self, *, serves: str = "", cluster: str = "", state: str = "", acknowledged: int | None = None) -> None:
        """What a life has written down."""
        if serves:
            self._check(f"life {self.lives}", serves, cluster)
            while len(self._states) - 1 > self._floor and self._states[-1] != serves:
                self._states.pop()
            self._floor = self._served = len(self._states) - 1
            self._cluster = cluster
        if state:
            self._states.append(state)
        if acknowledged is not None:
            self._floor = max(self._floor, self._served + acknowledged)

    def _check(self, where: str, state: str, cluster: str) -> None:
        if self._cluster and cluster != self._cluster:
            self.faults.append(f"{where}: it is cluster {cluster}, and was {self._cluster}")
        if state not in self._states[self._floor :]:
            known = [at for at, each in enumerate(self._states) if each == state]
            was = f"the state after batch {known[-1]}" if known else "no state that ever was"
            self.faults.append(f"{where}: it holds {was}, and batch {self._floor} was acknowledged or served")

    # --- images -----------------------------------------------------------------------------------------------------

    def _look(self, disk: Disk, moment: str) -> None:
        """Open what a loss of power at this moment leaves."""
        image, opened, faults = self._folder / "image", self._folder / "opened", len(self.faults)
        disk.image(self._chance, image)
        shutil.copytree(image, opened)
        self.images += 1
        try:
            state, cluster = asyncio.run(_open(self._kind, opened / "data"))
            self._check(moment, state, cluster)
            if self._chance.random() < 0.2:
                asyncio.run(_open(self._kind, opened / "data", serve=True))
                if asyncio.run(_open(self._kind, opened / "data")) != (state, cluster):
                    self.faults.append(f"{moment}: served and opened again, it holds something else")
        except (DataError, OSError) as error:
            self.faults.append(f"{moment}: {error}")
        shutil.rmtree(opened)
        if len(self.faults) > faults:
            image.rename(self._folder / f"fault-{len(self.faults)}")
        else:
            shutil.rmtree(image)

    def _compare(self, disk: Disk) -> None:
        """The recorder has missed nothing: what was recorded is what is there, but for SQLite's shared memory."""
        recorded = disk.files()
        files = [each for each in self._root.rglob("*") if each.is_file()]
        there = {str(each.relative_to(self._root)): each.read_bytes() for each in files}
        differing = [
            name
            for name in recorded.keys() | there.keys()
            if not name.endswith("-shm") and recorded.get(name) != there.get(name)
        ]
        assert not differing, f"life {self.lives}: not as it was recorded: {differing}"


async def _open(kind: str, path: Path, *, serve: bool = False) -> tuple[str, str]:
    """The state that a directory has, and whose it is. Raises `DataError`."""
    opened = await open_data(kind, path)
    try:
        if serve:
            await opened.durability.start()
        return opened.digest(), opened.cluster
    finally:
        await opened.durability.close(last_snapshot=False)
