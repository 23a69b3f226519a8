"""Histories of a directory over several lives, and checks of power-loss images.

A life is a forked process under the recorder. It closes its directory, is killed between two calls, or has a failing
sync. The next life opens the directory as it is in the page cache or, sometimes, as a power loss left it. At random
moments an image is written, opened and recovered. It must open, and belong to the same cluster. It must hold the state
after some batch: not before the last acknowledged batch, and not before the state that its life has served since its
start.
"""

import asyncio
import json
import logging
import os
import random
import shutil
import signal
import traceback
from pathlib import Path

from segstore.server.durable import DataError
from tests.power_loss.disk import Disk, Record, records
from tests.power_loss.life import live, open_data
from tests.power_loss.recording import begin

__all__ = ["History"]

_RECORDS = (10, 60, 600)
"""Approximate number of calls until a directory is created, until it is recovered, and until a life ends; lives are
killed equally often in each range."""
_SYNCS = (4, 60)
"""Approximate number of syncs until a directory is created, and until a life ends."""


class History:
    """A directory and its expected states.

    Attributes:
        lives, kills, failed_syncs: number of lives, and how many of them ended in each way.
        images: number of opened images.
        acknowledged: number of batches that lives acknowledged.
        faults: the problems found, one sentence each.
    """

    def __init__(self, kind: str, seed: int, folder: Path) -> None:
        """kind: as in `life`. folder: a new working folder; images with faults are left in it."""
        folder.mkdir()
        self.lives = self.kills = self.failed_syncs = self.images = self.acknowledged = 0
        self.faults: list[str] = []
        self._kind = kind
        self._chance = random.Random(seed)
        self._folder = folder
        self._root = folder / "life-0"
        self._root.mkdir()
        self._cluster = ""
        # The states after batches; an image may hold those from the floor on. The current life started with `_served`.
        self._states = [asyncio.run(_open(kind, folder / "empty"))[0]]
        self._floor = self._served = 0

    def run(self, lives: int, images: int) -> None:
        """Run a number of lives, and open a number of images of each."""
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
        """Run one life in a process of its own; returns its disk operations."""
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
        """Read what a life has written to `marks`."""
        if serves:
            self._check(f"life {self.lives}", serves, cluster)
            while len(self._states) - 1 > self._floor and self._states[-1] != serves:
                self._states.pop()
            self._floor = self._served = len(self._states) - 1
            self._cluster = cluster
        if state:
            self._states.append(state)
        if acknowledged is not None:
            self.acknowledged += 1
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
        """Open and check an image of a power loss at this moment."""
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
        """Assert that the recording is complete: it equals the folder's content."""
        recorded = disk.files()
        files = [each for each in self._root.rglob("*") if each.is_file()]
        there = {str(file.relative_to(self._root)): file.read_bytes() for file in files}
        differing = [name for name in recorded.keys() | there.keys() if recorded.get(name) != there.get(name)]
        assert not differing, f"life {self.lives}: not as it was recorded: {differing}"


async def _open(kind: str, path: Path, *, serve: bool = False) -> tuple[str, str]:
    """The state and the cluster of a directory. Raises `DataError`."""
    opened = await open_data(kind, path)
    try:
        if serve:
            await opened.durability.start()
        return opened.digest(), opened.cluster
    finally:
        await opened.durability.close(last_snapshot=False)
