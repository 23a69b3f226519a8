"""Build a container image from scratch, without a base image, and try it.

    python tools/packaging/make_image.py [OUT]

The image holds the executable of make_binary.py, unpacked so that it starts sooner, and the C library of this machine:
no shell, no package manager, no Python that is not segstore's. It is assembled as a root directory, committed with
buildah (Debian: apt install buildah; as root, or with user namespaces) and written to OUT/segstore-image.tar for
`docker load` and `podman load`. `segstore serve` then runs in that root directory as the image's user until it listens.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from make_binary import ROOT, CannotBuildError, build, empty_root

USER: Final = 10001
MOST_BYTES: Final = 80_000_000
COMMAND: Final = ("serve", "--host", "0.0.0.0")
PATIENCE_S: Final = 60.0
_PATH: Final = {"PATH": "/usr/sbin:/usr/bin"}
"""Where chroot is; nothing of it is in the root directory."""


def buildah(*arguments: str | Path) -> str:
    """Runs buildah, whose storage and isolation need no more than root; returns what it prints."""
    command = ("buildah", "--storage-driver", "vfs", *map(str, arguments))
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path, archive: Path) -> None:
    """Makes an image of a root directory, in Docker's format, the only one that has a health check."""
    container = buildah("from", "scratch")
    try:
        buildah("copy", container, root, "/")
        ports = [option for port in (12345, 9090, 8080) for option in ("--port", str(port))]
        start = ("--entrypoint", json.dumps(["/segstore/segstore"]), "--cmd", " ".join(COMMAND))
        check = ("--healthcheck", "CMD /segstore/segstore admin scopes list", "--healthcheck-interval", "10s")
        buildah("config", "--user", f"{USER}:{USER}", *ports, *start, *check, container)
        archive.unlink(missing_ok=True)
        buildah("commit", "--format", "docker", container, f"docker-archive:{archive}:segstore:latest")
    finally:
        buildah("rm", container)


def listening_s(root: Path) -> float:
    """Starts the server in a root directory as the image's user; returns the seconds until it listens."""
    enter = ("chroot", f"--userspec={USER}:{USER}", root, "/segstore/segstore")
    device = root / "dev" / "urandom"
    if not device.exists():  # container runtimes provide /dev
        device.parent.mkdir(exist_ok=True)
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 9))
        device.chmod(0o666)
    ports = ("--port", "0", "--controller-port", "0", "--announce", "json")
    began = time.monotonic()
    with subprocess.Popen((*enter, *COMMAND, *ports), stdout=subprocess.PIPE, text=True, env=_PATH) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.monotonic() - began
        process.terminate()
        process.wait(PATIENCE_S)
    if not line:
        raise RuntimeError("segstore serve did not listen in the image's root directory")
    return took


def main(out: Path) -> int:
    if shutil.which("buildah") is None or os.geteuid():
        print(
            "an image takes buildah and root: apt install buildah; `make binary` needs neither, and its executable "
            "runs in any image with the same C library",
            file=sys.stderr,
        )
        return 2
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="segstore-image-") as name:
        work = Path(name)
        root = work / "root"
        root.mkdir(mode=0o755)
        empty_root(root)
        try:
            build(root, work, one_file=False)
        except CannotBuildError as error:
            print(error, file=sys.stderr)
            return 2
        archive = out / "segstore-image.tar"
        commit(root, archive)
        size = archive.stat().st_size
        print(f"{archive}: {size / 1e6:.1f} MB; listening after {min(listening_s(root) for _ in range(3)):.2f} s")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()))
