"""The composition root of `segstore serve`: starts the parts, announces their addresses, and stops them.

The announcement is one line on stdout once all parts listen. Everything else goes to stderr, including instructions for
clients, which are omitted with a JSON announcement. SIGTERM, SIGINT and SIGHUP drain and end the process with status 0;
a second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from segstore import __version__, loops
from segstore.cli.settings import ServeSettings
from segstore.cli.terminal import log_to_stderr
from segstore.outputs import drain
from segstore.server.clock import LoopClock
from segstore.server.cluster import Cluster, ClusterNode, ClusterProcess
from segstore.server.config import read_text
from segstore.server.controller.api import Accounts, Authority
from segstore.server.faults import FaultFileError, Faults
from segstore.server.net import address_text
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Metadata

if TYPE_CHECKING:
    from segstore.traces import Recording

log = logging.getLogger(__name__)

_TICK_S = 0.5
_COLLECT_AFTER = 20_000
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 64 * 1024 * 1024
_MAPPED_BYTES = 32 * 1024 * 1024
"""The largest that glibc takes; long frames are shorter."""
_SWITCH_S = 0.0001
_DESCRIPTORS = 1 << 20
_FEW_DESCRIPTORS = 1024
_LEAST_DESCRIPTORS = 64
"""With fewer, the store's ports accept no connection, or libraries abort the process."""
_CGROUP = Path("/sys/fs/cgroup")
_UNKNOWN_MACHINE_BYTES = 4 << 30
"""Memory assumed where the system does not report it."""
_PARTS = ("segment_store", "controller", "admin", "http", "rest")


class OptionsError(Exception):
    """Options that contradict each other, or an unusable file; the text is one sentence."""


class StoreFailed(Exception):
    """The store cannot continue; the text is one sentence."""


def announcement(addresses: dict[str, Endpoint | None], form: str, *, tls: bool = False) -> str:
    """Formats the addresses of the parts as one line, for browsers as URLs, or as a JSON object.

    tls: whether all parts but the control API use TLS.
    """
    joined = {name: address_text(address) for name, address in addresses.items()}
    if form == "json":
        return json.dumps(joined)
    urls = {"http": "http://{}/", "rest": f"{'https' if tls else 'http'}://{{}}/"}
    shown = [
        f"{name.replace('_', ' ')} {urls.get(name, '{}').format(where)}" for name, where in joined.items() if where
    ]
    return f"segstore listens: {', '.join(shown)}"


def print_announcement(form: str, out: TextIO, *, tls: bool = False, **listening: Endpoint | None) -> None:
    """Prints the announcement of the parts that listen, by the names in `_PARTS`. Raises OSError."""
    out.write(announcement(dict.fromkeys(_PARTS) | listening, form, tls=tls) + "\n")
    drain(out)


def machine_bytes(cgroup: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory available to this process: the machine's, or the limit of its control group if that is lower.

    cgroup: where control groups are mounted. own: the file that lists the control groups of this process.
    """
    if not hasattr(os, "sysconf"):  # Windows
        return _UNKNOWN_MACHINE_BYTES
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            mount, name = (cgroup / "memory", "memory.limit_in_bytes") if kinds else (cgroup, "memory.max")
            group = mount / path.lstrip("/")
            for parent in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):  # in a namespace the path may differ
                    limits.append(int((parent / name).read_text()))
                if parent == mount:
                    break
    return min(limits)


def pointers(controller: str, *, tls: bool, passwords: bool, end: str = "what was written is gone") -> str:
    """Instructions for connecting a client to the controller, host:port, in the languages of the official clients.

    end: what happens when the process ends.
    """
    uri = f"{'tls' if tls else 'tcp'}://{controller}"
    python = "".join([", auth_enabled=True" if passwords else "", ", tls_enabled=True" if tls else ""])
    rust = "".join([".is_auth_enabled(true)" if passwords else "", ".is_tls_enabled(true)" if tls else ""])
    java = '.credentials(new DefaultCredentials("PASSWORD", "USER"))' if passwords else ""
    java += '.trustStore("CA.pem")' if tls else ""
    settings = [
        *(["pravega_client_tls_cert_path=CA.pem"] if tls else []),
        *(["pravega_client_auth_method=Basic, …_username and …_password"] if passwords else []),
    ]
    lines = [
        f"Point a client at the controller, {uri}",
        f'  Python  pravega_client.StreamManager("{uri}"{python})',
        f'  Rust    ClientConfigBuilder::default().controller_uri("{uri}"){rust}.build()',
        f'  Java    ClientConfig.builder().controllerURI(URI.create("{uri}")){java}.build()',
        *([f"  Python and Rust take from the environment: {'; '.join(settings)}"] if settings else []),
        f"Ctrl-C ends it, and {end}.",
    ]
    return "\n".join(lines)


def _cluster(settings: ServeSettings) -> ClusterNode:
    cluster = settings.cluster
    accounts = None
    if settings.password_file is not None:
        accounts = Accounts(re.split(r"\r\n?|\n", read_text(settings.password_file)))
    faults = None
    if settings.faults is not None or cluster.http_port is not None:  # rules may be added there
        faults = Faults(LoopClock(), settings.faults)
    authority = Authority(accounts, cluster.store.signing_key, ttl_s=settings.token_ttl_s, now_s=time.time)
    if settings.coordination.zookeeper is not None:
        return ClusterProcess(cluster, settings.coordination, authority=authority, faults=faults)
    return Cluster(cluster, authority=authority, faults=faults)


@contextlib.asynccontextmanager
async def flushed(recording: Recording, listens: Callable[[], bool]) -> AsyncIterator[None]:
    """Flushes a recording periodically, and closes it. If it is empty and no port listened, its file is removed, as the
    next attempt needs its name.
    """

    async def flush() -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            recording.recorder.tick()

    task = asyncio.create_task(flush(), name="segstore recording")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        recording.close(keep_empty=listens())


def _recording(path: Path, settings: ServeSettings) -> Recording:
    """Creates the recording of the stores' traffic. Raises OptionsError, OSError."""
    from segstore.traces import Recording, UnknownSuffix

    store, tokens = settings.cluster.store, settings.record_tokens
    metadata = Metadata(store.wire_version, f"segstore {__version__} serve")
    try:
        return Recording(path, metadata, record_tokens=tokens, max_frame_bytes=store.limits.max_frame_bytes)
    except UnknownSuffix as error:
        raise OptionsError(str(error)) from error


def settle_memory() -> None:
    """Call when all parts have started. Excludes existing objects from garbage collection, and collects rarely, because
    requests leave few cycles. Keeps the memory of freed buffers for new buffers: by default glibc returns it to the
    system at once if it is at the end of the heap, and the system clears it page by page when it is needed again.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, 20, 100)
    if sys.platform != "linux":
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # not with musl
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def stopped_by_signal(at_first: Callable[[], object] | None = None) -> asyncio.Event:
    """An event that SIGTERM, SIGINT, or the SIGHUP of a closed terminal sets, after which `at_first` is called.

    A second signal raises SystemExit with 128 and its number.
    """
    stop = asyncio.Event()

    def received(number: signal.Signals) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()
        if at_first is not None:
            at_first()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has it ignored
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loops.on_signal(number, received, number)
    return stop


async def _serve(settings: ServeSettings) -> None:
    listens, starting = asyncio.Event(), asyncio.current_task()
    # Starting may take long, as in a cluster of processes, so a signal cancels it.
    stop = stopped_by_signal(lambda: None if starting is None else starting.cancel())
    try:
        cluster = _cluster(settings)
    except FaultFileError:
        raise
    except ValueError as error:
        raise OptionsError(str(error)) from error
    async with contextlib.AsyncExitStack() as running:
        try:
            if settings.record is not None:
                recording = _recording(settings.record, settings)
                cluster.record(recording.recorder)
                await running.enter_async_context(flushed(recording, listens.is_set))
            await running.enter_async_context(cluster)
        except asyncio.CancelledError:
            if stop.is_set():
                return
            raise
        starting = None
        listens.set()
        settle_memory()
        tls = settings.cluster.tls is not None
        print_announcement(
            settings.announce,
            sys.stderr if settings.record == Path("-") else sys.stdout,
            tls=tls,
            segment_store=cluster.address,
            controller=cluster.controller_address,
            admin=cluster.stores[0].admin_address,
            http=cluster.http_address,
            rest=cluster.rest_address,
        )
        if settings.announce == "text" and (controller := address_text(cluster.controller_address)):
            data = settings.cluster.data
            end = f"what was written {f'stays in {data}' if data else 'is gone'}"
            passwords = settings.password_file is not None
            sys.stderr.write(pointers(controller, tls=tls, passwords=passwords, end=end) + "\n")
        limit = settings.cluster.store.limits.max_memory_bytes
        if settings.announce == "text" and limit is not None:
            what = "stored data" if settings.cluster.data is None else "names, attributes and keys"
            most = f"{limit / (1 << 20):.0f} MiB"
            sys.stderr.write(f"Memory for {what}: at most {most} (--max-memory); requests for more are refused.\n")
        sys.stderr.flush()
        assert cluster.failure is not None, "it has started"
        cluster.failure.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if cluster.failure.done():
            raise StoreFailed(cluster.failure.result())
        log.info("draining %d connections", sum(len(store.hub.connections) for store in cluster.stores))


def allow_many_connections() -> None:
    """Raises the limit of file descriptors to the maximum: the default, often 1,024, limits connections.

    Raises OSError if that is too low for any connection.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError) as error:  # some systems have a lower bound of their own
            log.info("%d connections and files at most: %s", soft, error)
    if 0 <= soft < _LEAST_DESCRIPTORS:
        least = f"at least {_LEAST_DESCRIPTORS} are needed; raise the limit (ulimit -n)"
        raise OSError(errno.EMFILE, f"at most {soft} connections and files can be open at a time, and {least}")
    if 0 <= soft < _FEW_DESCRIPTORS:
        log.warning("at most %d connections and files can be open at a time (ulimit -n)", soft)


def serve(settings: ServeSettings) -> None:
    """Runs until a signal. Raises CannotListen, whose text is one sentence, for an unusable port or certificate,
    OptionsError for unusable options, DataError for the data directory, CoordinationError for ZooKeeper, StoreFailed
    when nothing can be written any more or the store has left its cluster.

    A second signal raises SystemExit with 128 and its number.
    """
    log_to_stderr(settings.log_level)
    allow_many_connections()
    if settings.cluster.data is not None:
        # The committing thread should get the interpreter soon after the disk is done.
        sys.setswitchinterval(_SWITCH_S)
    loops.run(_serve(settings))
