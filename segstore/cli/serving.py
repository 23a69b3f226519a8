"""`segstore serve`: the composition root that starts the parts, says where they listen, and stops them.

The announcement is one line on stdout once all parts listen; everything else goes to stderr, also how to point a client
at it, which programs that read the announcement as JSON are spared. SIGTERM and SIGINT drain
and end the process with status 0; a second one ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, Self

import uvloop
from pydantic import Field, SecretStr, model_validator

from segstore import __version__
from segstore.cli.terminal import log_to_stderr
from segstore.server import StoreSettings
from segstore.server.cluster import Cluster, ClusterProcess, ClusterSettings
from segstore.server.controller import ControllerConfig, read_config
from segstore.server.controller.api import Accounts, Authority
from segstore.server.coordination import OwnershipSettings, PolicyName
from segstore.server.durable import MIN_MEMORY_BYTES
from segstore.server.faults import FaultFileError, Faults, read_faults
from segstore.server.node import LoopClock

log = logging.getLogger(__name__)

_TICK_S = 0.5
_COLLECT_AFTER = 20_000
_SWITCH_S = 0.0001
_DESCRIPTORS = 1 << 20
_FEW_DESCRIPTORS = 1024
_CGROUP = Path("/sys/fs/cgroup")


class OptionsError(Exception):
    """Options that do not fit together, or a file of them that cannot be used; the text is one sentence."""


class StoreFailed(Exception):
    """The store cannot go on; the text is one sentence."""


class ServeOptions(StoreSettings):
    """What `segstore serve` takes beside the settings of the store.

    controller_port, http_port: where the controller and the control API listen; None for nowhere.
    http_token_file: file with the token that requests to the control API must carry; required off loopback.
    controller_config: TOML file with the fields of `ControllerConfig`; None for the defaults.
    commit_delay_ms, scale_delay_ms, lease_cap_ms: override those fields; None for the values of the file.
    stores: how many segment stores share the containers; the first has the ports.
    password_file: users of the controller, see `segstore.server.controller.api.auth`; None for no check of callers.
    token_ttl_s: lifetime of issued tokens in seconds, with `auth_key`; -1 for no expiry.
    open_controller: allows `auth_key` without `password_file`: every caller gets tokens for everything.
    open_stores: allows `password_file` without `auth_key`: the stores require no tokens.
    published_host: the name under which clients find the stores and the controller; None for `host`.
    data: folder that everything is kept in; None for memory.
    memory_bytes: how much of the segments' bytes is in memory at a time, with `data`; None for 512 MiB.
    faults: file of what is to go wrong, see `segstore.server.faults.file`; None for nothing.
    trace: new file that all traffic of the stores is recorded to; None for no recording.
    record_tokens: whether the recording contains delegation tokens.
    announce: "text" or "json".
    zookeeper: HOST:PORT of the ZooKeeper that makes several processes one cluster; None for this process alone.
    zookeeper_auth: "user:password" that protects the nodes created there; None for nodes that anyone may change.
    trust_network: allows passwords and tokens to be sent without TLS to the addresses that nodes of ZooKeeper name.
    configuration_zookeeper: the one that holds scopes and stream policies, with `zookeeper`; None for the same one.
    zookeeper_patience_ms: so long ZooKeeper may be silent before this process ends.
    session_timeout_ms, session_expired_policy, session_reconnect_retries, takeover_delay_ms, preload, stale_node,
        load_report_interval_ms, rebalance: as in `OwnershipSettings`.
    """

    controller_port: int | None = None
    stores: int = 1
    controller_config: Path | None = None
    commit_delay_ms: int | None = None
    scale_delay_ms: int | None = None
    lease_cap_ms: int | None = None
    password_file: Path | None = None
    token_ttl_s: int = Field(default=600, ge=-1)
    open_controller: bool = False
    open_stores: bool = False
    published_host: str | None = None
    http_port: int | None = None
    http_token_file: Path | None = None
    data: Path | None = None
    memory_bytes: int | None = Field(default=None, ge=MIN_MEMORY_BYTES)
    faults: Path | None = None
    trace: Path | None = None
    record_tokens: bool = False
    announce: str = "text"
    zookeeper: str | None = Field(default=None, min_length=1)
    zookeeper_auth: SecretStr | None = None
    trust_network: bool = False
    configuration_zookeeper: str | None = Field(default=None, min_length=1)
    zookeeper_patience_ms: float = Field(default=60_000.0, gt=0)
    session_timeout_ms: float = Field(default=10_000.0, gt=0)
    session_expired_policy: PolicyName = "shutdown"
    session_reconnect_retries: int = Field(default=10, ge=0)
    takeover_delay_ms: float = Field(default=500.0, ge=0)
    preload: bool = False
    stale_node: Literal["wait", "replace"] = "wait"
    load_report_interval_ms: float = Field(default=5_000.0, gt=0)
    rebalance: bool = True

    @model_validator(mode="after")
    def _is_not_open_by_mistake(self) -> Self:
        has_key, has_users = self.auth_key is not None, self.password_file is not None
        if has_key and not has_users and self.controller_port is not None and not self.open_controller:
            raise ValueError(
                "with a key but no password file the controller gives tokens for everything to every caller; give "
                "--password-file FILE, or --open-controller if this is intended"
            )
        if has_users and not has_key and not self.open_stores:
            raise ValueError(
                "with a password file but no key the stores accept requests from every peer; give "
                "--auth-key-file FILE, or --open-stores if this is intended"
            )
        return self


def _join(address: tuple[str, int] | None) -> str | None:
    if address is None:
        return None
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def announcement(addresses: dict[str, tuple[str, int] | None], form: str) -> str:
    """One line that says what listens where; as JSON, an object with a key for each part."""
    joined = {name: _join(address) for name, address in addresses.items()}
    if form == "json":
        return json.dumps(joined)
    listening = ", ".join(f"{name.replace('_', ' ')} {where}" for name, where in joined.items() if where)
    return f"segstore listens: {listening}"


def machine_bytes(cgroup: Path = _CGROUP, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory available to this process: the machine's, or the limit of its control group if that is lower.

    cgroup: where control groups are mounted. own: the file that lists the control groups of this process.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds and "memory" not in kinds.split(","):
                continue
            mount, name = (cgroup / "memory", "memory.limit_in_bytes") if kinds else (cgroup, "memory.max")
            group = mount / path.lstrip("/")
            for each in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):  # in a namespace the path may differ
                    found.append(int((each / name).read_text()))
                if each == mount:
                    break
    return min(found)


def _memory_line(limit: int, *, durable: bool) -> str:
    what = "names, attributes and keys" if durable else "stored data"
    return f"Memory for {what}: at most {limit / (1 << 20):.0f} MiB (--max-memory); requests for more are refused."


def pointers(controller: str, *, tls: bool, passwords: bool, data: Path | None = None) -> str:
    """How to point a client at the controller, host:port, in the languages of the official clients."""
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
        f"Ctrl-C ends it, and what was written {f'stays in {data}' if data else 'is gone'}.",
    ]
    return "\n".join(lines)


_OWNERSHIP = (
    "session_timeout_ms",
    "session_expired_policy",
    "session_reconnect_retries",
    "takeover_delay_ms",
    "preload",
    "stale_node",
    "load_report_interval_ms",
    "rebalance",
)

_DELAYS = ("commit_delay_ms", "scale_delay_ms", "lease_cap_ms")


def _controller_config(options: ServeOptions) -> ControllerConfig:
    config = ControllerConfig() if options.controller_config is None else read_config(options.controller_config)
    given = {name: value for name in _DELAYS if (value := getattr(options, name)) is not None}
    return ControllerConfig.model_validate(config.model_dump() | given)


def _limited(options: ServeOptions) -> ServeOptions:
    """The options with a bound on memory; the default is half of the available memory."""
    limits = options.limits
    if limits.max_memory_bytes is not None:
        return options
    return options.model_copy(update={"limits": limits.model_copy(update={"max_memory_bytes": machine_bytes() // 2})})


def _cluster(options: ServeOptions) -> Cluster | ClusterProcess:
    store = StoreSettings(**{name: getattr(options, name) for name in StoreSettings.model_fields})
    settings = ClusterSettings(
        store=store,
        stores=options.stores,
        controller_port=options.controller_port,
        published_host=options.published_host,
        http_port=options.http_port,
        http_token_file=options.http_token_file,
        data=options.data,
        memory_bytes=options.memory_bytes,
        ownership=OwnershipSettings(**{name: getattr(options, name) for name in _OWNERSHIP}),
        controller=_controller_config(options),
    )
    accounts = None
    if options.password_file is not None:
        try:
            lines = options.password_file.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"the password file is not UTF-8 at byte {error.start}") from error
        accounts = Accounts(lines)
    faults = None
    if options.faults is not None or options.http_port is not None:  # rules may be added there
        faults = Faults(LoopClock(), None if options.faults is None else read_faults(options.faults))
    authority = Authority(accounts, options.signing_key, ttl_s=options.token_ttl_s, now_s=time.time)
    if options.zookeeper is not None:
        return ClusterProcess(
            settings,
            options.zookeeper,
            configuration_zookeeper=options.configuration_zookeeper,
            patience_ms=options.zookeeper_patience_ms,
            authority=authority,
            faults=faults,
            zookeeper_auth=options.zookeeper_auth,
            trust_network=options.trust_network,
        )
    for name in ("configuration_zookeeper", "zookeeper_auth"):
        if getattr(options, name) is not None:
            raise ValueError(f"{name} needs zookeeper, which makes processes one cluster")
    return Cluster(settings, authority=authority, faults=faults)


@contextlib.asynccontextmanager
async def _recording(
    options: ServeOptions, cluster: Cluster | ClusterProcess, listens: asyncio.Event
) -> AsyncIterator[None]:
    """Records what the stores' connections carry, if that is asked, until the last of them has ended.

    listens: set once all ports listen. If that never was and nobody came, the file is removed: the next try needs its
    name.
    """
    if options.trace is None:
        yield
        return
    from segstore.traces import FileRecorder

    recorder = FileRecorder(
        options.trace,
        recorder=f"segstore {__version__} serve",
        wire_version=options.wire_version,
        record_tokens=options.record_tokens,
        max_frame_bytes=options.limits.max_frame_bytes,
    )

    async def ticking() -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            recorder.tick()

    for store in cluster.stores:
        store.hub.recorder = recorder
    task = asyncio.create_task(ticking(), name="segstore recording")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        recorder.close()
        if not listens.is_set() and not recorder.connections:
            options.trace.unlink(missing_ok=True)


async def _serve(options: ServeOptions) -> None:
    loop, stop, listens = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    starting = asyncio.current_task()

    def asked_to_stop(number: signal.Signals) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()
        if starting is not None:
            starting.cancel()  # what others have to do first, as in a cluster of processes, may take long

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_stop, number)
    try:
        cluster = _cluster(options)
    except FaultFileError:
        raise
    except ValueError as error:
        raise OptionsError(str(error)) from error
    async with contextlib.AsyncExitStack() as running:
        try:
            await running.enter_async_context(_recording(options, cluster, listens))
            await running.enter_async_context(cluster)
        except asyncio.CancelledError:
            if stop.is_set():
                return
            raise
        starting = None
        listens.set()
        addresses: dict[str, tuple[str, int] | None] = {
            "segment_store": cluster.address,
            "controller": cluster.controller_address,
            "admin": cluster.stores[0].admin_address,
            "http": cluster.http_address,
        }
        # What is here now stays; what requests leave behind has few cycles, so it is looked through seldom.
        gc.freeze()
        gc.set_threshold(_COLLECT_AFTER, 20, 100)
        sys.stdout.write(announcement(addresses, options.announce) + "\n")
        sys.stdout.flush()
        if options.announce == "text" and (controller := _join(cluster.controller_address)):
            tls, passwords = options.tls_cert is not None, options.password_file is not None
            sys.stderr.write(pointers(controller, tls=tls, passwords=passwords, data=options.data) + "\n")
        limit = options.limits.max_memory_bytes
        if options.announce == "text" and limit is not None:
            sys.stderr.write(_memory_line(limit, durable=options.data is not None) + "\n")
        sys.stderr.flush()
        await _ended(stop, cluster.failure)
        log.info("draining %d connections", sum(len(store.hub.connections) for store in cluster.stores))


async def _ended(stop: asyncio.Event, failure: asyncio.Future[str] | None) -> None:
    """Return when a signal asks for the end. Raises StoreFailed if the data directory takes no more."""
    waiting = asyncio.create_task(stop.wait(), name="segstore until asked to stop")
    either: list[asyncio.Future[Any]] = [waiting] if failure is None else [waiting, failure]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    if failure is not None and failure.done():
        raise StoreFailed(failure.result())


def allow_many_connections() -> None:
    """Take as many descriptors as the system lets a user have: what is set at first, often 1,024, ends connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError) as error:  # some systems have a lower bound of their own
            log.info("%d connections and files at most: %s", soft, error)
    if 0 <= soft < _FEW_DESCRIPTORS:
        log.warning("at most %d connections and files can be open at a time (ulimit -n)", soft)


def serve(options: ServeOptions) -> None:
    """Runs until a signal. Raises CannotListen, whose text is one sentence, when a port or certificate will not do,
    OptionsError for options that do not, DataError for a data directory that does not, CoordinationError for a
    ZooKeeper that does not, StoreFailed when nothing can be written any more, or the store's part in a cluster is over.

    A second signal raises SystemExit with 128 and its number.
    """
    log_to_stderr()
    allow_many_connections()
    if options.data is not None:
        # The thread that commits should not wait long for the interpreter when the disk is done.
        sys.setswitchinterval(_SWITCH_S)
    uvloop.run(_serve(_limited(options)))
