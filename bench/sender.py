"""Another process that sends bytes: a benchmark that receives must not share its interpreter with who sends.

`Sender` is the benchmark's side. Run as a module it is the sending side: a line on standard input names a port, how
often to repeat the message there and the message's file; each is one connection, sent as fast as it is taken, closed.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["Sender"]

CHUNK_BYTES: Final = 1 << 19


class Sender:
    """A process that sends `message` again and again. Used as a context manager; it ends with it."""

    def __init__(self, messages: dict[str, bytes]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="segstore-bench-")
        for name, message in messages.items():
            Path(self._folder.name, name).write_bytes(message)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Sender:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sender", self._folder.name],
            stdin=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(10)
        self._folder.cleanup()

    def send(self, name: str, times: int, port: int) -> None:
        """Starts to send a message `times` times to a port of 127.0.0.1; does not wait for it."""
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the sender is not running")
        self._process.stdin.write(f"{port} {times} {name}\n")
        self._process.stdin.flush()


def _send_all(folder: Path) -> None:
    for order in sys.stdin:
        port, times, name = order.split()
        message = (folder / name).read_bytes()
        at_once = max(1, CHUNK_BYTES // len(message))
        chunk, left = message * at_once, int(times)
        with socket.create_connection(("127.0.0.1", int(port))) as peer:
            while left:
                now = min(left, at_once)
                peer.sendall(chunk[: now * len(message)])
                left -= now


if __name__ == "__main__":
    _send_all(Path(sys.argv[1]))
