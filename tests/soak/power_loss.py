"""Power losses: opens hundreds of images of what a disk could hold, and compares them with what was acknowledged.

    python -m tests.soak.power_loss [--images 600] [--seed N]

Stores on plain directories, and on those of a cluster of processes, are killed, have failing syncs, and are restarted,
while every disk operation is recorded; see `tests.power_loss`. Needs Linux and a C compiler. Stores have threads, so a
seed gives the same histories again, but not the same order of calls in them.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.power_loss.history import History
from tests.power_loss.life import CONTAINERS
from tests.power_loss.recording import is_loaded, run_recorded

LIVES = 6
IMAGES = 5
"""Number of lives of a history, and number of images of each life."""


def histories(folder: Path, seed: int, images: int) -> int:
    """Run histories, each in a folder of its own, until enough images were opened or one has a fault; returns the exit
    status."""
    chance, kinds = random.Random(seed), list(CONTAINERS)
    opened = lives = kills = failed_syncs = acknowledged = faults = number = 0
    while opened < images and not faults:
        kind = kinds[number % len(kinds)]
        number += 1
        made = folder / f"{number}-{kind}"
        history = History(kind, chance.randrange(1 << 32), made)
        history.run(LIVES, IMAGES)
        opened, lives, kills = opened + history.images, lives + history.lives, kills + history.kills
        failed_syncs, faults = failed_syncs + history.failed_syncs, faults + len(history.faults)
        acknowledged += history.acknowledged
        for fault in history.faults:
            print(f"history {number}, {kind}, {fault}", flush=True)
        if not history.faults:
            shutil.rmtree(made)
    ends = f"{kills} kills, {failed_syncs} failed syncs, {acknowledged} batches acknowledged"
    print(f"{opened} images of {lives} lives, {ends}: {faults} faults")
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.power_loss")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--images", type=int, default=int(os.environ.get("POWER_LOSS_IMAGES") or 600))
    parser.add_argument("--folder", type=Path, help="working folder; images with faults are left there")
    options = parser.parse_args()
    if shutil.which("cc") is None or sys.platform != "linux":
        print("NOT RUN: needs Linux and a C compiler")
        return 0
    if options.folder is not None and is_loaded():
        return histories(options.folder, options.seed, options.images)
    print(f"{options.images} images with seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="segstore-power-loss-") as made:
        folder = made if options.folder is None else options.folder
        arguments = ["--seed", str(options.seed), "--images", str(options.images), "--folder", str(folder)]
        return run_recorded(Path(made), "-m", "tests.soak.power_loss", *arguments).returncode


if __name__ == "__main__":
    sys.exit(main())
