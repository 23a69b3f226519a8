"""A real ZooKeeper server in a process of its own, on a free port of this machine: for tests and for measuring.

It runs from the jars that come with PySpark, or from Debian's package `zookeeper`, with Java 17 or newer. Ticks are
short, so that sessions may be: from 0.4 seconds, for those that are to be lost, to a minute, for those that are not,
however slow the machine is. Nothing is kept, so nothing waits for the disk: its directory is the caller's.
"""

import asyncio
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from segstore.pipeline.session import JAVA, java_version
from tests.ports import held_port

__all__ = ["PART", "ZooKeeperFailed", "ZooKeeperServer", "available", "end_session", "zookeeper", "zookeeper_server"]

PART: Final = "ZooKeeper (Java 17 or newer and PySpark's jars)"
"""What a test that needs it says."""

TICK_MS: Final = 200

_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
_DEBIAN: Final = Path("/usr/share/java")
_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m", "-XX:-UsePerfData")
_SETTINGS: Final = """\
tickTime={tick}
maxSessionTimeout=60000
forceSync=no
dataDir={folder}/data
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
"""
_START_S: Final = 60.0


class ZooKeeperFailed(RuntimeError):
    """The server did not start, or does not answer."""


def _jars() -> str:
    """The class path; "" where there is none."""
    spark = find_spec("pyspark")
    for folder in [] if spark is None or spark.origin is None else [Path(spark.origin).parent / "jars"]:
        if any(folder.glob("zookeeper-[0-9]*.jar")):
            return f"{folder}/*"
    if (_DEBIAN / "zookeeper.jar").exists():
        return f"{_DEBIAN}/*"
    return ""


def available() -> bool:
    """Whether one can be started here."""
    return bool(_jars()) and (java_version() or 0) >= JAVA


class ZooKeeperServer:
    """A server that keeps its files in `folder`. `start`, `stop` and `wipe` block.

    Attributes:
        address: host:port, the same after each restart.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._folder = folder
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it serves.

        Raises:
            ZooKeeperFailed: it ended, or was silent for too long.
        """
        with (self._folder / "log").open("ab") as log:
            self._process = _start(self._folder, self._port, log.fileno())
        _wait_for_answer(self._process, self._port)

    def stop(self) -> None:
        """Kills the server, if it is running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wipe(self) -> None:
        """Restarts the server without its data."""
        self.stop()
        shutil.rmtree(self._folder / "data")
        self.start()


@contextmanager
def zookeeper_server(folder: Path) -> Iterator[ZooKeeperServer]:
    """Starts a server; it is killed at the end."""
    with held_port() as port:
        server = ZooKeeperServer(folder, port)
        try:
            server.start()
            yield server
        except ZooKeeperFailed as error:
            error.add_note(f"ZooKeeper wrote: {(folder / 'log').read_text(errors='replace')[-2_000:]}")
            raise
        finally:
            server.stop()


@contextmanager
def zookeeper(folder: Path) -> Iterator[str]:
    """As `zookeeper_server`, but yields host:port only."""
    with zookeeper_server(folder) as server:
        yield server.address


def _start(folder: Path, port: int, log: int) -> subprocess.Popen[bytes]:
    settings = folder / "zoo.cfg"
    settings.write_text(_SETTINGS.format(tick=TICK_MS, folder=folder, port=port))
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    command = [java or "java", *_JAVA, "-cp", _jars(), _MAIN, str(settings)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait_for_answer(process: subprocess.Popen[bytes], port: int) -> None:
    """Waits until the server serves.

    It requests a session, because the server answers `ruok` before it can create sessions, and never answers requests
    for sessions that come before that.
    """
    end = time.monotonic() + _START_S
    while process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as asked:
                asked.sendall(_ask_for_session(0, bytes(16)) + _FAREWELL)
                if asked.recv(16):
                    return
        except OSError as error:
            if time.monotonic() > end:
                raise ZooKeeperFailed(f"ZooKeeper on port {port} was silent for {_START_S:g} s") from error
        time.sleep(0.05)
    raise ZooKeeperFailed(f"ZooKeeper on port {port} ended with status {process.returncode}")


def _ask_for_session(session_id: int, password: bytes) -> bytes:
    """A request for a session, 0 for a new one."""
    return _framed(struct.pack(">iqiqi", 0, 0, 1_000, session_id, len(password)) + password)


def _framed(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


_FAREWELL: Final = _framed(struct.pack(">ii", 1, -11))


async def end_session(server: str, session_id: int, password: bytes) -> None:
    """Ends somebody's session, by its id and password: as one who takes it over and says farewell in one breath."""
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(_ask_for_session(session_id, password) + _FAREWELL)
        await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
