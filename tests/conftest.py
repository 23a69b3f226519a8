"""What holds for every test: nothing it opened is left behind, and nothing that did not run goes unmentioned.

Invariant: after a test and its fixtures no asyncio task, socket, pipe or thread is left that was not there before.
Fixtures of a wider scope are set up earlier and so are not counted against a test.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import os
import platform
import re
import shutil
import socket
import stat
import sys
import threading
import time
import tomllib
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from segstore.pipeline.session import JAVA, java_version
from segstore.wire.codec import codec_backend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Container, Generator, Iterator

    from _pytest.terminal import TerminalReporter

    from segstore.server import MockSegmentStore
    from tests.browser import Chromium
    from tests.server.support import Peer

pytest.register_assert_rewrite("tests.pytest_suites")

ROOT = Path(__file__).parent.parent

# `bench` is run from the checkout and not installed. It is loaded by its path: the root stays out of `sys.path`.
_bench = spec_from_file_location("bench", ROOT / "bench" / "__init__.py")
assert _bench is not None
assert _bench.loader is not None
sys.modules["bench"] = module_from_spec(_bench)
_bench.loader.exec_module(sys.modules["bench"])

TYPESCRIPT = Path(sys.prefix) / "typescript"
"""Where `make test` installs npm's packages for TypeScript."""
JUNIT = [
    Path("/usr/share/java", f"{name}.jar")
    for name in (
        *("junit-jupiter-api", "junit-jupiter-engine", "junit-platform-commons", "junit-platform-console"),
        *("junit-platform-engine", "junit-platform-launcher", "junit-platform-reporting", "apiguardian-api"),
        *("opentest4j", "opentest4j-reporting-events", "picocli"),
    )
]
"""JUnit 5 as Debian packages it; `make test` installs it."""


def zookeeper_starts() -> bool:
    """Whether a server of its own can be started here and talked to."""
    from tests.server.coordination.zookeeper_server import available

    return find_spec("kazoo") is not None and available()


def has_pyspark(*oldest: int) -> bool:
    """Whether PySpark is here, of this version or newer."""
    if find_spec("pyspark") is None:
        return False
    return tuple(map(int, version("pyspark").split(".")[:2])) >= oldest


PARTS: dict[str, Callable[[], bool]] = {
    "the extension segstore._speed": lambda: find_spec("segstore._speed") is not None,
    "the codec c": lambda: codec_backend == "c",
    "CPython's _testcapi": lambda: find_spec("_testcapi") is not None,
    "pravega, the official client": lambda: (
        find_spec("pravega_client") is not None or bool(os.environ.get("OFFICIAL_CLIENT_PYTHON"))
    ),
    "pravega in this Python": lambda: find_spec("pravega_client") is not None,
    "Linux's /proc": lambda: sys.platform == "linux",
    "a C compiler on Linux": lambda: sys.platform == "linux" and shutil.which("cc") is not None,
    "IPv6": lambda: socket.has_ipv6,
    "git": lambda: shutil.which("git") is not None,
    "the extra docs": lambda: find_spec("material") is not None,
    "opentelemetry-sdk": lambda: find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None,
    "chromium": lambda: shutil.which("chromium") is not None,
    "tshark": lambda: shutil.which("tshark") is not None,
    "rustc": lambda: shutil.which("rustc") is not None,
    "Go": lambda: shutil.which("go") is not None,
    "JUnit 5 and a Java compiler": lambda: shutil.which("javac") is not None and all(each.is_file() for each in JUNIT),
    "node": lambda: shutil.which("node") is not None,
    "npm's packages openapi-ts and typescript": (TYPESCRIPT / "node_modules" / "@hey-api").is_dir,
    "npm's package axe-core": (TYPESCRIPT / "node_modules" / "axe-core").is_dir,
    "deltalake": lambda: find_spec("deltalake") is not None,
    "pyiceberg": lambda: find_spec("pyiceberg") is not None,
    "PySpark 4.1 or newer": lambda: has_pyspark(4, 1),
    "PySpark 4.2 or newer": lambda: has_pyspark(4, 2),
    "Java 17 or newer": lambda: (java_version() or 0) >= JAVA,
    "ZooKeeper (Java 17 or newer and PySpark's jars)": zookeeper_starts,
    "glibc": lambda: platform.libc_ver()[0] == "glibc",
    "../shared": (ROOT.parent / "shared").is_dir,
}
"""What a test may ask for with `@pytest.mark.needs(part)`, and how its presence is found out."""

LONG = {
    "Spark and the pipeline": (
        *("tests/spark/", "tests/pipeline/", "tests/streams/", "tests/properties/test_pipeline.py"),
        *("tests/test_pipeline_session.py", "tests/test_report_cli.py"),
    ),
    "browsers": ("tests/view/", "tests/server/page/"),
    "ZooKeeper and clusters of processes": (
        *("tests/server/cluster/", "tests/server/coordination/test_zookeeper.py"),
        *("tests/seeds/test_pip57_zookeeper.py", "tests/test_serving_cluster.py", "tests/test_serving_damage.py"),
    ),
    "suites in other languages": ("tests/test_docs_suites.py", "tests/typescript/"),
    "packages, machines and the documentation site": (
        *("tests/test_packaging.py", "tests/test_machines.py", "tests/test_docs_site.py"),
    ),
    "benchmarks, kills, losses of power and long runs": (
        *("tests/explore/test_clients.py", "tests/fuzz/", "tests/power_loss/", "tests/seeds/test_shown.py"),
        *("tests/server/durable/test_killed.py", "tests/server/durable/test_power_loss.py"),
    ),
}
"""What `make test` leaves out, by folder and file; single tests have the marker `long`."""
PROGRAMS = frozenset(("chromium", "tshark", "rustc", "Go", "node", "Java 17 or newer", "JUnit 5 and a Java compiler"))
"""What pip does not install, and only long tests need."""
LONG_PARTS = PROGRAMS | {
    *("deltalake", "pyiceberg", "the extra docs", "PySpark 4.1 or newer", "PySpark 4.2 or newer"),
    *("npm's packages openapi-ts and typescript", "npm's package axe-core"),
    "ZooKeeper (Java 17 or newer and PySpark's jars)",
}
"""The parts whose tests are `long`."""
MAYBE_LONG = re.compile(r"\bmark\.(long|needs)\b")
"""What a file has in which a single test is `long`."""

PARTNERS = frozenset(
    {"pravega, the official client", "Java 17 or newer", "ZooKeeper (Java 17 or newer and PySpark's jars)"}
)
"""Third-party programs with timers of their own, which can expire on a machine that stalls for a second. If such a
program fails, its test gets a second try, which is reported at the end. More than `MOST_SECOND_TRIES` fail the run."""
PARTNER_ERRORS = ("ClientCrashed", "PanicException", "Py4JNetworkError", "ZooKeeperFailed")
"""Types of errors that show such a failure. Any other error, even with one of these as its context, may be a fault of
ours, such as a failed `assert` or a wait that did not end."""
MOST_SECOND_TRIES = 1
LEDGER = Path(__file__).with_name("second_tries.toml")
"""The ledger of second tries with an unknown cause."""

GROUPS = {
    "tests/spark/test_dead_spark.py": "Spark's processes",
    "tests/spark/test_shipping.py": "Spark's processes",
    "tests/spark/": "spark",
    "tests/seeds/test_pip57_zookeeper.py": "zookeeper",
    "tests/server/cluster/test_contents.py": "contents of a cluster",
    "tests/server/coordination/test_zookeeper.py": "sessions with ZooKeeper",
    "tests/test_serving_cluster.py": "zookeeper",
    "tests/test_serving_damage.py": "zookeeper",
    "tests/test_packaging.py": "packaging",
    "tests/typescript/": "typescript",
    "tests/test_docs_site.py": "docs",
}
"""Folders and files whose tests share something dear to start: with pytest-xdist, one worker runs all of a group."""

CLOSING_TURNS = 20
"""Turns of the loop that a closed transport gets to call `connection_lost` and give its socket back."""
LATE_LOOKS = 1_000
LATE_LOOK_S = 0.01
"""How often, and how far apart, is looked again: gRPC closes its sockets on threads of its own, in its own time."""
TASKS_OF_GRPC = ("task HandleExceptions[", "task rpc_task ")
"""The tasks of gRPC's servers, which end when a thread of gRPC has said so."""
GARBAGE_AT = 100
"""The look before which garbage is collected: the frames of an error may keep objects of gRPC that nothing closes. A
socket of Python that is closed this way is still an error, by its ResourceWarning."""
THREADS_END_S = 2.0
MOST_OF_A_REASON = 8_000
"""Characters of what the first try of a test failed with that are shown, from the end."""

# Tests draw the same examples in every run, more of them in `make test-long`; `make soak` searches for new ones.
settings.register_profile("test", derandomize=True, deadline=None, max_examples=30)
settings.register_profile("long", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, database=None, max_examples=1_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))


def open_channels() -> dict[tuple[int, int], str]:
    """Give every open socket and pipe of this process: (descriptor, inode) and what a person calls it."""
    channels = {}
    for entry in Path("/dev/fd").iterdir():
        fd = int(entry.name)
        try:
            status = os.fstat(fd)
        except OSError:  # the descriptor that listed the folder
            continue
        if stat.S_ISSOCK(status.st_mode):
            try:
                channels[fd, status.st_ino] = f"socket {_ends(fd)} (descriptor {fd})"
            except OSError:  # a thread of gRPC's has closed it since
                continue
        elif stat.S_ISFIFO(status.st_mode):
            channels[fd, status.st_ino] = f"pipe (descriptor {fd})"
    return channels


def _ends(fd: int) -> str:
    opened = socket.socket(fileno=fd)
    try:
        here = opened.getsockname()
        try:
            return f"{here} to {opened.getpeername()}"
        except OSError:
            return f"{here}"
    finally:
        opened.detach()


def _said(left: list[str]) -> str:
    more = f" and {len(left) - 5} more" if len(left) > 5 else ""
    return "left behind: " + ", ".join(sorted(left)[:5]) + more


def _late_looks() -> int:
    return LATE_LOOKS if "grpc" in sys.modules else 1


def _calls_of_spark() -> dict[threading.Thread, Any]:
    """Give the threads in which Spark's JVM calls this process, with their connections: it opens one when it likes."""
    connections = sys.modules.get("py4j.clientserver")
    if connections is None:
        return {}
    served = {thread: getattr(getattr(thread, "_target", None), "__self__", None) for thread in threading.enumerate()}
    # The thread that accepts them is another kind: it is there from the first call on, and is some test's.
    return {thread: each for thread, each in served.items() if isinstance(each, connections.ClientServerConnection)}


def _left(channels: Container[object]) -> list[str]:
    of_spark = {each.socket.fileno() for each in _calls_of_spark().values() if each.socket is not None}
    return [name for key, name in open_channels().items() if key not in channels and key[0] not in of_spark]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Fail the test that leaves a socket, a pipe or a thread; set up first, so its look is the last."""
    channels = open_channels()
    threads = set(threading.enumerate())
    yield
    left = _left(channels)
    for look in range(_late_looks()):
        if not left:
            break
        if look == GARBAGE_AT:
            gc.collect()
        time.sleep(LATE_LOOK_S)
        left = _left(channels)
    for thread in set(threading.enumerate()) - threads - _calls_of_spark().keys():
        thread.join(THREADS_END_S)  # one that was told to end may need a moment to do it
        if thread.is_alive():
            left.append(f"thread {thread.name}")
    if left:
        pytest.fail(_said(left), pytrace=False)


@pytest.fixture
async def loop_is_left_clean() -> AsyncIterator[None]:
    """Fail the async test that leaves a task, or a socket that only the end of its loop would close."""
    channels = open_channels()
    tasks = asyncio.all_tasks()

    def sockets() -> list[str]:
        open_now = _left(channels)
        if not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
            # uvloop makes its pair of sockets for signals anew each time that it runs; `nothing_is_left` looks later.
            open_now = [name for name in open_now if not name.startswith("socket  to ")]
        return open_now

    def running() -> list[str]:
        here = asyncio.current_task()
        left = asyncio.all_tasks() - tasks
        return [f"task {task.get_name()} of {task.get_coro()!r}" for task in left if task is not here]

    yield
    for _ in range(CLOSING_TURNS):
        if not (running() or sockets()):
            return
        await asyncio.sleep(0)
    left = [task for task in running() if not task.startswith(TASKS_OF_GRPC)]

    def late() -> list[str]:
        return sockets() + [task for task in running() if task.startswith(TASKS_OF_GRPC)]

    for _ in range(_late_looks()):
        if not late():
            break
        await asyncio.sleep(LATE_LOOK_S)
    if left := late() + left:
        pytest.fail(_said(left), pytrace=False)


@pytest.fixture
def mock_settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The settings of a fixture's mock, as the test's marker `mock` gives them."""
    marker = request.node.get_closest_marker("mock")
    return {} if marker is None else marker.kwargs


@pytest.fixture
async def peer(store: MockSegmentStore) -> AsyncIterator[Peer]:
    """A connection to the fixture `store`."""
    from tests.server.support import Peer

    async with await Peer.connect(store) as connected:
        yield connected


async def _start_grpc() -> None:
    from grpc import aio

    aio.init_grpc_aio()  # wants a loop to run


@pytest.fixture(scope="session")
def grpc_runs() -> Iterator[None]:
    """Keep gRPC's own thread and sockets for the whole run; they are its library's and no test's.

    Every test that serves or calls over gRPC asks for this, or the check for what is left behind finds them.
    """
    from grpc import aio

    asyncio.run(_start_grpc())
    yield
    aio.shutdown_grpc_aio()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """The browser of the run, or of a worker's share of it."""
    from tests.browser import Chromium

    with closing(Chromium(tmp_path_factory.mktemp("chromium"))) as browser:
        yield browser


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a ZooKeeper that nobody stops; tests take parts of its tree."""
    from tests.server.coordination import zookeeper_server

    with zookeeper_server.zookeeper(tmp_path_factory.mktemp("zookeeper")) as address:
        yield address


def pytest_configure() -> None:
    # In debug mode, asyncio warns of whatever took 0.1 s: on a busy machine that may come up in any test's log.
    logging.getLogger("asyncio").addFilter(lambda record: not str(record.msg).startswith("Executing %s took"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a group whole to one worker, and everything else test by test.

    pytest-xdist does so by a suffix that its workers give the ids of tests; pytest 9.1 and later make ids anew and the
    suffix is gone. Units of many tests are given out first and `tests/wire` comes last, so no worker waits for long.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((group for path, group in GROUPS.items() if nodeid.startswith(path)), nodeid)

    return ByGroup(config, log) if config.getoption("dist") == "loadgroup" else None


def is_long_file(path: str) -> bool:
    return any(path.startswith(paths) for paths in LONG.values())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files that import what `make test` does not install, and in a run of long tests, files without any."""
    path = collection_path.relative_to(ROOT).as_posix() if collection_path.is_relative_to(ROOT) else ""
    match config.getoption("markexpr"):
        case "not long" if is_long_file(path):
            return True
        case "long" if collection_path.suffix == ".py" and not is_long_file(path):
            return True if MAYBE_LONG.search(collection_path.read_text("utf-8")) is None else None
    return None


def is_long(item: pytest.Item) -> bool:
    return is_long_file(item.nodeid) or any(
        not LONG_PARTS.isdisjoint(marker.args) for marker in item.iter_markers("needs")
    )


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    second_try = config.pluginmanager.hasplugin("rerunfailures")  # -p no:rerunfailures shows what needs it
    for item in items:
        if is_long(item):
            item.add_marker(pytest.mark.long)
        if second_try and any(not PARTNERS.isdisjoint(marker.args) for marker in item.iter_markers("needs")):
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=[rf"^(?!(?:{'|'.join(PARTNER_ERRORS)})\b)"]))
        if not isinstance(item, pytest.Function):
            continue
        test = getattr(item.obj, "hypothesis", None)
        if inspect.iscoroutinefunction(test.inner_test if test else item.obj):
            names = item.fixturenames
            names.insert(names.index("nothing_is_left") + 1, "loop_is_left_clean")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()  # collecting tests leaves little garbage
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.freeze()  # a test that collects garbage looks at its own objects, not at every module's


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for part in marker.args:
            if not PARTS[part]():
                pytest.skip(f"{part} is not here")


def known_second_tries() -> set[str]:
    """The tests in the ledger."""
    if not LEDGER.exists():
        return set()
    return {each["test"] for each in tomllib.loads(LEDGER.read_text("utf-8")).get("second_try", [])}


def second_try(first: pytest.TestReport) -> str:
    """The ledger entry for the report of a first try."""
    crash = getattr(first.longrepr, "reprcrash", None)
    why = first.longreprtext if crash is None else crash.message
    test, text = (json.dumps(each) for each in (first.nodeid, why))  # TOML's strings are quoted as JSON's are
    return f"[[second_try]]\ntest = {test}\nfirst = {text}\ndate = {datetime.now(UTC).date()}"


def second_tries(config: pytest.Config) -> list[pytest.TestReport]:
    """The reports of first tries that a second one followed."""
    reporter: TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    return [] if reporter is None else reporter.getreports("rerun")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and len(second_tries(session.config)) > MOST_SECOND_TRIES:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Report second tries, and what did not run and why, in every run, whatever the options."""
    if tries := second_tries(config):
        known = known_second_tries()
        terminalreporter.section("second tries", sep="=", yellow=True)
        for each in sorted(tries, key=lambda each: each.nodeid):
            text = each.longreprtext[-MOST_OF_A_REASON:]
            terminalreporter.line(f"second try: {each.nodeid}")
            terminalreporter.line(f"  the first, in its {each.when}: {text}")
            if each.nodeid not in known:
                terminalreporter.line(f"  add to {LEDGER.name}, until its cause is known:")
                terminalreporter.line(second_try(each))
        if len(tries) > MOST_SECOND_TRIES:
            terminalreporter.line(
                f"FAILED: {len(tries)} second tries in one run; {MOST_SECOND_TRIES} is allowed", red=True
            )
    missing: Counter[str] = Counter()
    for report in terminalreporter.getreports("skipped"):
        where = report.longrepr
        reason = where[2] if isinstance(where, tuple) else str(where)
        missing[reason.removeprefix("Skipped: ")] += 1
    lines = [f"{reason} ({count} {'test' if count == 1 else 'tests'})" for reason, count in sorted(missing.items())]
    if config.getoption("markexpr") == "not long":
        lines.append(f"the rest of `make test-all`: {', '.join(LONG)}")
        lines += [f"{part} is not here, for `make test-all`" for part in sorted(PROGRAMS) if not PARTS[part]()]
    if not lines:
        return
    terminalreporter.section("not run", sep="=", yellow=True)
    for line in lines:
        terminalreporter.line(f"NOT RUN: {line}")
