"""Stores for tests: a real S3 server, and an HTTP server with injected faults."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import IO, Any

__all__ = ["HttpStore", "closed_stores", "http_store", "s3_server"]

SECRET = "hunter2-hunter2-hunter2"


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """Runs moto's S3 server in a process of its own; yields the storage options for it."""
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        assert server.stderr is not None
        said: list[str] = []
        started = Event()
        drain = Thread(target=_listen, args=(server.stderr, said, started))
        drain.start()
        try:
            found = started.wait(60) and re.search(r"http://127\.0\.0\.1:\d+", "".join(said))
            if not found:
                raise RuntimeError(f"moto's S3 server did not start: {''.join(said)}")
            yield {"key": "somebody", "secret": SECRET, "endpoint_url": found[0]}
        finally:
            server.terminate()
            drain.join(10)


def _listen(stream: IO[str], said: list[str], started: Event) -> None:
    for line in stream:
        if not started.is_set():
            said.append(line)
        if "http://" in line:
            started.set()
    started.set()


@contextmanager
def closed_stores() -> Iterator[None]:
    """Closes the connections of fsspec's file systems at the end."""
    from fsspec.implementations.http import HTTPFileSystem
    from s3fs import S3FileSystem

    yield
    for system in (HTTPFileSystem, S3FileSystem):
        system.clear_instance_cache()
    gc.collect()


class HttpStore(ThreadingHTTPServer):
    """Serves `files` by range. faults: consumed one a GET: a status to answer with, or "half" of the range."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[int | str] = []
        self.gets = 0

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class _Handler(BaseHTTPRequestHandler):
    server: HttpStore

    def do_HEAD(self) -> None:
        self._answer(self.server.files.get(self.path[1:]), body=False)

    def do_GET(self) -> None:
        self.server.gets += 1
        fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            self.send_error(fault)
            return
        self._answer(self.server.files.get(self.path[1:]), half=fault == "half", all_of_it=fault == "all")

    def _answer(self, data: bytes | None, *, body: bool = True, half: bool = False, all_of_it: bool = False) -> None:
        if data is None:
            self.send_error(404)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found and not all_of_it:
            if int(found[1]) >= len(data):
                self.send_error(416)
                return
            data = data[int(found[1]) : int(found[2]) + 1]
        if half:
            data = data[: len(data) // 2]
        self.send_response(206 if found else 200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Keeps requests out of the output of the tests."""


@contextmanager
def http_store() -> Iterator[HttpStore]:
    with HttpStore() as store, closed_stores():
        thread = Thread(target=store.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield store
        finally:
            store.shutdown()
            thread.join()
