"""The pytest plugin: fixtures for mock stores, faults, trace servers and recordings.

Registered under the name `segstore`. `segstore_server`, `segstore_cluster`, `segstore_faults`, `segstore_tap`,
`segstore_trace` and `segstore_explore` serve from an event loop of their own, in a thread or a process that
starts with the first of them; so they work alike for synchronous tests and for coroutines. Each test has servers of its
own, on free ports.

Invariants: a run without these fixtures imports only this module of segstore and starts nothing; servers end with their
test, thread and process with the session. The plugin changes no option, marker, warning filter or hook of other
plugins. In reports of failed tests it adds sections about servers, and hides frames of the client if the client raised
the error and --full-trace is not given. A recording of a failed test never overwrites a passing test's recording.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import pytest

if TYPE_CHECKING:
    from types import FrameType

    from _pytest.terminal import TerminalReporter

    from segstore import testing
    from segstore.explore import Client, Exploration, ExploreOptions
    from segstore.server.faults import FaultSettings
    from segstore.server.replay import TraceOptions
    from segstore.tap import TapOptions
    from segstore.wire.history import Broken

_RECORDED: Final = "segstore_recorded"
_MOST_NAME: Final = 120
_MOST_PROBLEMS: Final = 20
_SUFFIXES: Final = (".jsonl", ".wtrace")
_CHOICES: Final = {"segstore_unmatched_faults": ("warn", "error", "ignore"), "segstore_process": ("auto", "yes", "no")}

_failed: Final = pytest.StashKey[bool]()
_servers: Final = pytest.StashKey[list["testing.Running | testing.RunningTrace"]]()
_reports: Final = pytest.StashKey[list[tuple[str, str]]]()
_running: Final = pytest.StashKey[bool]()
_ended_by: Final = pytest.StashKey[str]()
_SIGNAL_EVERY_S: Final = 0.05
_MOST_SIGNALS: Final = 20
_names: Final = pytest.StashKey[dict[str, str]]()


class UnmatchedFault(pytest.PytestWarning):
    """A fault rule of a test has never matched, so its fault was not tested."""

    __module__ = "pytest"  # so that a warning filter can name it without an import


# --- options --------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("segstore", "mock segment store")
    group.addoption(
        "--segstore-record",
        metavar="DIR",
        help="record the traffic of each test's mock stores as a trace of its own, DIR/<test name>.jsonl",
    )
    group.addoption(
        "--segstore-record-tokens",
        action="store_true",
        help="include delegation tokens in these traces, instead of asterisks",
    )
    group.addoption(
        "--segstore-check",
        action="store_true",
        help="judge what each test's mock stores and their clients did: a broken rule fails the test",
    )
    parser.addini("segstore_traces", "folders in which segstore_trace looks, after that of the test", "paths", [])
    parser.addini(
        "segstore_unmatched_faults",
        "what to do about a fault rule that never matched in a test: warn, error or ignore",
        default="warn",
    )
    parser.addini(
        "segstore_process",
        "whether mock stores run in a process of their own: yes, no, or auto, if the official client is installed",
        default="auto",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "segstore(**settings): settings of segstore_server: stores, auth_key, faults, process, …"
    )
    config.addinivalue_line(
        "markers", "segstore_explore(**options): options of segstore_explore: failures, timeout_s, stores, pairs, …"
    )
    for name, choices in _CHOICES.items():
        if config.getini(name) not in choices:
            raise pytest.UsageError(f"{name} is one of {', '.join(choices)}, not {config.getini(name)!r}")
    folder = config.getoption("segstore_record")
    if folder is not None:
        # Absolute before workers are started, which may have another working directory.
        config.option.segstore_record = str(Path(config.invocation_params.dir, folder))
        from segstore.traces import STANDARD_OUTPUT, is_trace, make_folder

        if Path(folder) == STANDARD_OUTPUT or is_trace(Path(folder)):
            advice = "give a folder, in which each test has a file of its own, TEST.jsonl"
            raise pytest.UsageError(f"--segstore-record={folder}: {advice}")
        try:
            make_folder(Path(config.option.segstore_record))
        except OSError as error:
            raise pytest.UsageError(f"--segstore-record={folder}: {error.strerror}") from error


# --- recordings -----------------------------------------------------------------------------------------------------


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:_MOST_NAME]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Names the recordings: after the test, with its module if the name is not unique."""
    if session.config.getoption("segstore_record") is None:
        return
    short = Counter(_plain(item.name) for item in session.items)
    names: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for item in session.items:
        name = _plain(item.name)
        if short[name] > 1:
            path, _, rest = item.nodeid.partition("::")
            name = _plain(f"{path.removesuffix('.py')}.{rest}".replace("::", ".").replace("/", "."))
        taken[name] += 1
        names[item.nodeid] = name if taken[name] == 1 else f"{name}-{taken[name]}"
    session.config.stash[_names] = names


def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    node.stash[_failed] = True


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    paths = {
        path
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, path in getattr(report, "user_properties", ())
        if name == _RECORDED
    }
    if paths:
        folder = terminalreporter.config.getoption("segstore_record")
        failed = sum(path.endswith(".failed.jsonl") for path in paths)
        terminalreporter.section("segstore recorded")
        traces = "1 trace" if len(paths) == 1 else f"{len(paths)} traces"
        terminalreporter.line(f"{traces} in {folder}" + (f", {failed} of failed tests" if failed else ""))


def _moved(verdict: Broken, file: str) -> Broken:
    return verdict._replace(places=tuple(place._replace(file=file) for place in verdict.places))


class _Recordings:
    """The recordings of a test: one per server."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._item = item = request.node
        folder = item.config.getoption("segstore_record")
        self._folder = None if folder is None else Path(folder)
        self._is_judged = item.config.getoption("segstore_check")
        self._of_broken: pytest.TempPathFactory | None = (
            request.getfixturevalue("tmp_path_factory") if self._is_judged else None
        )
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._made: list[Path] = []

    def new(self) -> dict[str, Any]:
        """The options that record the next server; empty without --segstore-record and --segstore-check."""
        if self._folder is None and not self._is_judged:
            return {}
        self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="segstore-")
        self._made.append(Path(self._scratch.name, f"{len(self._made)}.wtrace"))
        tokens = self._item.config.getoption("segstore_record_tokens")
        return {"record": self._made[-1], "record_tokens": tokens, "record_values": {"test": self._item.nodeid}}

    def keep(self) -> None:
        """Writes the recordings with traffic as fixtures, and judges them. All servers must be stopped."""
        if self._scratch is None:
            return
        try:
            if self._folder is not None:
                self._write(self._folder)
            if self._is_judged:
                self._judge()
        finally:
            self._scratch.cleanup()

    def _judge(self) -> None:
        """Fails the test if a rule is broken; its stores are judged one by one, because each has a clock and names.

        The recording of a broken rule is kept.
        """
        from segstore.check import check, records_of, without_injected

        for path in filter(Path.exists, self._made):
            report = check([path])
            records = dict(records_of([str(path)], [], set())) if report.broken else {}
            broken = without_injected(report.broken, records.__getitem__)
            if not broken:
                continue
            assert self._of_broken is not None, "it is judged"
            kept = shutil.copy(path, self._of_broken.mktemp("segstore-check"))
            broken = [_moved(verdict, str(kept)) for verdict in broken]
            report = report._replace(verdicts=report.verdicts._replace(broken=broken))
            pytest.fail(report.text(), pytrace=False)

    def _write(self, folder: Path) -> None:
        from segstore.traces import TraceFile, write_trace

        name = self._item.config.stash[_names][self._item.nodeid]
        failed = self._item.stash.get(_failed, False)
        for number, path in enumerate(self._made, 1):
            if not path.exists():
                continue  # the server was not started
            stem = name if number == 1 else f"{name}-{number}"
            good, bad = (folder / f"{stem}{suffix}" for suffix in (".jsonl", ".failed.jsonl"))
            with TraceFile(path) as trace:
                records = list(trace.records())
                if not records:
                    continue
                write_trace(bad if failed else good, records, lambda trace=trace: trace.metadata)  # type: ignore[misc]
            if not failed:
                bad.unlink(missing_ok=True)
            self._item.user_properties.append((_RECORDED, str(bad if failed else good)))


# --- servers --------------------------------------------------------------------------------------------------------


class _Hosts:
    """The hosts of servers, each kind started on first use.

    terminal: standard error as it is without pytest's capture, also in the servers' process.
    """

    def __init__(self, in_process: bool, terminal: int) -> None:
        self._process_by_default = not in_process
        self.terminal = terminal
        self._started: dict[bool, testing.Servers] = {}

    def get(self, process: bool | None = None) -> testing.Servers:
        from segstore.testing import ServerProcess, ServerThread

        key = self._process_by_default if process is None else process
        if key not in self._started:
            self._started[key] = ServerProcess([self.terminal]) if key else ServerThread()
            self._started[key].start()
        return self._started[key]

    def stop(self) -> None:
        for host in self._started.values():
            host.stop()
        os.close(self.terminal)


@pytest.fixture(scope="session")
def segstore_hosts(pytestconfig: pytest.Config) -> Iterator[_Hosts]:
    """The hosts of all mock stores of the session: a thread or a process, by the setting `segstore_process`."""
    choice = pytestconfig.getini("segstore_process")
    # The official client holds the interpreter lock while it waits: a store in the same process never gets to answer.
    process = find_spec("pravega_client") is not None if choice == "auto" else choice == "yes"
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with nullcontext() if capture is None else capture.global_and_fixture_disabled():
        terminal = os.dup(2)
    hosts = _Hosts(in_process=not process, terminal=terminal)
    hosts.get()  # now, so that a test's check for leaks does not find it
    yield hosts
    hosts.stop()


def _beside(
    request: pytest.FixtureRequest, faults: FaultSettings | Path | str | None
) -> FaultSettings | Path | str | None:
    """The fault file beside the test if it exists; otherwise the path is relative to the working directory."""
    if isinstance(faults, str | Path) and (beside := request.path.parent / faults).is_file():
        return beside
    return faults


@pytest.fixture
def segstore_cluster(segstore_hosts: _Hosts, request: pytest.FixtureRequest) -> Iterator[testing.StartServer]:
    """Starts one or more fresh mock stores when called: segstore_cluster(stores=3, **settings).

    process: whether in a process of their own; by default, the setting `segstore_process`.
    """
    recordings = _Recordings(request)
    running: list[testing.RunningServer] = []

    def start(*, process: bool | None = None, **settings: Unpack[testing.ServerOptions]) -> testing.RunningServer:
        __tracebackhide__ = True
        settings["faults"] = _beside(request, settings.get("faults"))
        if settings.get("record") is None:  # a store has one recording, and that of the test comes first
            settings.update(recordings.new())  # type: ignore[typeddict-item]
        running.append(segstore_hosts.get(process).serve(**settings))
        _reported(request.node, running[-1])
        return running[-1]

    yield start
    try:
        unmatched = _stop(running)
    finally:
        recordings.keep()
    _report_unmatched(request, unmatched)


def _stop(running: Sequence[testing.Running]) -> list[str]:
    """Stops servers, the newest first; returns texts about each server's first rules that never matched."""
    unmatched = [text for server in running if server.watched for text in server.faults.unmatched_report()]
    with ExitStack() as stack:
        for server in running:
            stack.callback(server.stop)
    return unmatched


def _report_unmatched(request: pytest.FixtureRequest, lines: list[str]) -> None:
    choice = request.config.getini("segstore_unmatched_faults")
    # A failed test may have ended before its faults could match.
    if choice == "ignore" or request.node.stash.get(_failed, False):
        return
    if choice == "error" and lines:
        _make_reports(request.node)
        pytest.fail("\n".join(lines), pytrace=False)
    for line in lines:
        request.node.warn(UnmatchedFault(line))


def _settings(request: pytest.FixtureRequest, name: str = "segstore") -> dict[str, Any]:
    """The settings of a test's markers of this name; the nearest takes precedence."""
    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers(name):
        if marker.args:
            pytest.fail(f"the marker {name} takes settings by name, such as stores=2", pytrace=False)
        settings = {**marker.kwargs, **settings}
    return settings


@pytest.fixture
def segstore_server(segstore_cluster: testing.StartServer, request: pytest.FixtureRequest) -> testing.RunningServer:
    """A fresh mock store with the settings of the marker `segstore`: host, port, controller_uri, requests, wait_for."""
    settings = _settings(request)
    try:
        return segstore_cluster(**settings)
    except (TypeError, ValueError, OSError) as error:
        if not settings:
            raise
        names = ", ".join(settings)  # their values may be secrets
        problem = f"the settings of the marker segstore ({names}) are invalid: {error}"
        raise pytest.fail.Exception(problem, pytrace=False) from None  # the message of the cause is in it


@pytest.fixture
def segstore_faults(segstore_server: testing.RunningServer) -> testing.RunningFaults:
    """The fault rules of `segstore_server`: segstore_faults.add("type = APPEND_BLOCK_END", do="close after")."""
    return segstore_server.faults


@pytest.fixture
def segstore_tap(segstore_hosts: _Hosts, request: pytest.FixtureRequest) -> Iterator[testing.StartTap]:
    """Starts a proxy between clients and a Pravega when called: segstore_tap("tcp://HOST:PORT", faults="faults.yaml").

    Without a controller or store=, it proxies `segstore_server`. Options are those of `segstore.tap.Tap`.
    """
    running: list[testing.RunningTap] = []

    def start(
        controller: str | None = None,
        store: str | None = None,
        *,
        process: bool | None = None,
        **options: Unpack[TapOptions],
    ) -> testing.RunningTap:
        __tracebackhide__ = True
        options["faults"] = _beside(request, options.get("faults"))
        if controller is None and store is None:
            controller = request.getfixturevalue("segstore_server").controller_uri
        running.append(segstore_hosts.get(process).tap(controller, store, **options))
        _reported(request.node, running[-1])
        return running[-1]

    yield start
    _report_unmatched(request, _stop(running))


def _in_loop() -> bool:
    """Whether an event loop of asyncio runs in this thread."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def _waiting_line(item: pytest.Item) -> str:
    """The line at which the coroutine of a test waits in the running loop, below a line end; "" if it is not found."""
    import asyncio
    import linecache

    name = getattr(item, "originalname", item.name)
    for frame in chain.from_iterable(task.get_stack(limit=1) for task in asyncio.all_tasks()):
        if (frame.f_code.co_filename, frame.f_code.co_name) == (str(item.path), name):
            line = linecache.getline(str(item.path), frame.f_lineno).strip()
            return f"\n{item.path.name}:{frame.f_lineno}: {line}"
    return ""


@contextmanager
def _ending(item: pytest.Item) -> Iterator[Callable[[str], None]]:
    """Gives a function that fails the running test, from any thread.

    The main thread fails at its next step in Python, or in a system call. An event loop may swallow an error in a
    callback, or leave a transport half closed, so a running loop is given a second to become idle. The signal is
    repeated until it has worked: just before a system call it has no effect. SIGURG is ignored by default, so a late
    signal does no harm.
    """
    reasons: list[str] = []
    signalling: list[threading.Thread] = []
    over = threading.Event()
    signals = count(1)

    def fail(_: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        idle = frame is not None and frame.f_code.co_name == "select"
        may_fail = bool(reasons) and item.stash.get(_running, False)
        if may_fail and (idle or not _in_loop() or next(signals) > _MOST_SIGNALS):
            item.stash[_running] = False
            item.stash[_ended_by] = reasons[0]
            if idle and _in_loop():  # then the traceback has the loop, and not the test
                pytest.fail(f"{reasons[0]}{_waiting_line(item)}", pytrace=False)
            pytest.fail(reasons[0])

    def signal_main() -> None:
        while item.stash.get(_running, False) and not over.is_set():
            signal.pthread_kill(main.ident or 0, signal.SIGURG)
            over.wait(_SIGNAL_EVERY_S)

    def end(reason: str) -> None:
        reasons.append(reason)
        signalling.append(threading.Thread(target=signal_main, name="segstore ends a test"))
        signalling[-1].start()

    main = threading.main_thread()
    if threading.current_thread() is not main:  # only there can signals be handled
        yield lambda _: None
        return
    before = signal.signal(signal.SIGURG, fail)
    try:
        yield end
    finally:
        over.set()
        for thread in signalling:
            thread.join()
        signal.signal(signal.SIGURG, before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    __tracebackhide__ = True
    item.stash[_running] = True  # outside of it, an exception would end pytest itself
    try:
        return (yield)
    finally:
        item.stash[_running] = False


# --- reports of failed tests ----------------------------------------------------------------------------------------


def _reported(item: pytest.Item, server: testing.Running | testing.RunningTrace) -> None:
    """Has a server reported if its test fails."""
    item.stash.setdefault(_servers, []).append(server)


def _make_reports(item: pytest.Item) -> list[tuple[str, str]]:
    """The reports about a test's servers, as titles and texts; made once, while their host still runs."""
    reports = item.stash.setdefault(_reports, [])
    servers = item.stash[_servers]
    for number, server in enumerate(servers, 1):
        try:
            text = server.report()
        except (RuntimeError, TimeoutError) as error:  # the host has ended, or hangs
            text = f"no report: {error}"
        kind = type(server).__name__.removeprefix("Running").lower()
        reports.append((f"segstore {kind} {number}", text))
    item.stash[_servers] = []
    return reports


def _hide_client() -> None:
    """Has pytest hide the frames of the client in tracebacks of its own errors, whose text describes the problem.

    Called at each failure: a later test may have imported more of the client.
    """
    errors = sys.modules.get("segstore.client.errors")
    if errors is None:
        return

    def is_its_own(error: pytest.ExceptionInfo[BaseException] | None) -> bool:
        return error is not None and error.errisinstance(errors.ClientError)

    for name, module in tuple(sys.modules.items()):
        if name.startswith("segstore.client."):
            vars(module).setdefault("__tracebackhide__", is_its_own)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None:
        _hide_client()
    report = yield
    if _servers in item.stash:
        if report.failed:
            report.sections += _make_reports(item)
        if report.failed or report.when == "teardown":
            item.stash[_servers], item.stash[_reports] = [], []
    return report


# --- traces ---------------------------------------------------------------------------------------------------------


def _find(request: pytest.FixtureRequest, file: str | Path) -> Path:
    folders = [request.path.parent, *request.config.getini("segstore_traces")]
    for folder in folders:
        for suffix in ("", *_SUFFIXES):
            path = Path(folder, f"{file}{suffix}")
            if path.is_file():
                return path
    text = f"there is no trace {str(file)!r} in {', '.join(map(str, folders))}"
    traces = chain.from_iterable(Path(folder).glob(f"*{suffix}") for folder in folders for suffix in _SUFFIXES)
    names = {trace.stem for trace in traces}
    near = difflib.get_close_matches(Path(file).stem, sorted(names), 1)
    pytest.fail(f"{text}{f' ({near[0]}?)' if near else ''}; the setting segstore_traces names folders", pytrace=False)


def _has_calls(path: Path) -> bool:
    from segstore.traces import TraceFile
    from segstore.wire.trace import RecordKind

    with TraceFile(path) as trace:
        return any(record.kind is RecordKind.CALL for record in trace.records())


@pytest.fixture
def segstore_trace(segstore_hosts: _Hosts, request: pytest.FixtureRequest) -> Iterator[testing.StartTrace]:
    """Answers clients from a trace when called: segstore_trace("file", mode="match", missing="fail", pace=None).

    The first request that the trace does not answer ends the test. With other values of `missing` the test continues,
    and such a request is an error at its end, unless check=False, which makes missing="error" the default. With
    complete=True, an unused request is an error, too. With missing="pass" and no `upstream`, other requests are
    forwarded to `segstore_server`, and if the trace has controller calls, other calls to its controller.
    """
    from segstore.wire.endpoint import Endpoint
    from segstore.wire.printable import first_of

    started: list[tuple[Path, testing.RunningTrace, bool, bool]] = []

    def start(
        file: str | Path,
        *,
        check: bool | None = None,
        complete: bool = False,
        process: bool | None = None,
        **options: Unpack[TraceOptions],
    ) -> testing.RunningTrace:
        __tracebackhide__ = True
        path = _find(request, file)
        missing = options.setdefault("missing", "error" if check is False else "fail")
        passes = missing == "pass"
        if check is False and missing == "fail":
            raise ValueError("missing='fail' fails the test, so it does not go with check=False")
        if passes and options.get("upstream") is None:
            server = request.getfixturevalue("segstore_server")
            options["upstream"] = server.address
            if "upstream_controller" not in options and _has_calls(path):
                options["upstream_controller"] = Endpoint.parse(server.controller_uri)
        check = not passes if check is None else check
        announce = segstore_hosts.terminal, f"{request.node.nodeid}: {path.name}"
        running = segstore_hosts.get(process).replay(path, announce=announce if check or passes else None, **options)
        _reported(request.node, running)
        started.append((path, running, check, complete))
        if missing == "fail" or options.get("timeout_s") is not None:
            end = stack.enter_context(_ending(request.node))
            running.when_failed(lambda reason: end(f"{path.name}: {reason}"))
        return running

    with ExitStack() as stack:
        yield start
    lines: list[str] = []
    for path, running, check, complete in started:
        running.stop()
        unanswered = [problem for problem in running.problems if check or problem.refusal]
        problems = list(first_of(map(str, unanswered), len(unanswered), _MOST_PROBLEMS, "problems"))
        if running.failure and running.failure not in problems:
            problems.append(running.failure)
        lines += [f"{path.name}: {problem}" for problem in problems]
        if complete:
            lines += [f"{path.name}: {count} × {name} was not requested" for name, count in running.unused().items()]
            lines += [f"  {line}" for line in running.missed()]
    if lines and lines != [request.node.stash.get(_ended_by, "")]:
        _make_reports(request.node)
        pytest.fail("\n".join(lines), pytrace=False)


# --- the explorer ---------------------------------------------------------------------------------------------------


_HOLDS_THE_LOCK: Final = (
    "the official client holds the interpreter lock while it waits, so the explorer cannot answer it in this process: "
    "give a command, such as segstore_explore([sys.executable, 'app.py'])"
)


def _uses_official(client: Callable[..., Any]) -> bool:
    """Whether a function or its module refers to the official client."""
    official = sys.modules.get("pravega_client")
    if official is None:
        return False
    client = client.func if isinstance(client, partial) else client
    module = sys.modules.get(getattr(client, "__module__", None) or "")
    names = getattr(client, "__globals__", None) or ({} if module is None else vars(module))
    its_own = {id(official), *(id(value) for value in vars(official).values() if callable(value))}
    code = getattr(client, "__code__", None)
    is_imported = code is not None and "pravega_client" in code.co_names
    return is_imported or any(id(value) in its_own for value in names.values())


@pytest.fixture
def segstore_explore(request: pytest.FixtureRequest) -> testing.Explore:
    """Runs a client once for each failure at each point of its run: found = segstore_explore(client).

    The client is a coroutine function, a function, which runs in a thread of its own, or a command, as a string or as
    words. A function is called with a fresh cluster for each run, and may only use its addresses. The official client
    holds the interpreter lock while it waits, so it needs a command. Options are as for `segstore.explore.explore`,
    which an async test awaits itself; the marker `segstore_explore` gives them, too.
    """
    import asyncio
    import inspect
    from concurrent.futures import ThreadPoolExecutor

    from segstore.explore import CommandClient, explore, words_of
    from segstore.testing import WouldBlock, in_a_thread

    marked = _settings(request, "segstore_explore")

    def run(client: Callable[..., Any] | str | Sequence[str], **options: Unpack[ExploreOptions]) -> Exploration:
        __tracebackhide__ = True
        coroutine: Client
        alone: dict[str, Any] = {}
        if not callable(client):
            coroutine = CommandClient(words_of(client))
        elif inspect.iscoroutinefunction(client):
            coroutine = client
        elif _uses_official(client):
            pytest.fail(_HOLDS_THE_LOCK, pytrace=False)
        else:
            coroutine = partial(in_a_thread, client)
            alone = {"jobs": 1}  # what the function shares may not be for several threads
        WouldBlock.check("segstore_explore", "segstore.explore.explore(…)")
        # Not in this thread, whose current event loop is not ours to change.
        with ThreadPoolExecutor(1, "segstore explorer") as pool:
            return pool.submit(asyncio.run, explore(coroutine, **{**alone, **marked, **options})).result()

    return run
