"""Fixtures for people's own tests: mock stores, faults, traces that answer, recordings.

Registered under the name `segstore`. `segstore_server`, `segstore_cluster`, `segstore_faults`, `segstore_trace` and
`segstore_explore` serve from one thread with an event loop, made when the first of them is used, so they are the same
for synchronous tests and for coroutines; each test has servers of its own, on free ports.

Invariants: a run that uses none of the fixtures imports nothing of segstore but this module, and starts nothing; when a
test has ended its servers have, and when the session has ended the thread has. What was not asked for is not changed:
no option, marker, warning filter or hook of others. A recording of a test that failed never takes the place of one that
passed.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from segstore.explorer import Exploration
    from segstore.testing import RunningFaults, RunningServer, RunningTrace, ServerThread
    from segstore.tracing import FileRecorder

__all__ = [
    "UnmatchedFault",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_exception_interact",
    "pytest_terminal_summary",
    "segstore_cluster",
    "segstore_explore",
    "segstore_faults",
    "segstore_server",
    "segstore_thread",
    "segstore_trace",
]

_RECORDED: Final = "segstore_recorded"
_MOST_NAME: Final = 120
_UNMATCHED: Final = ("warn", "error", "ignore")

_failed: Final = pytest.StashKey[bool]()
_names: Final = pytest.StashKey[dict[str, str]]()


class UnmatchedFault(pytest.PytestWarning):
    """A rule of a test's faults has matched nothing, so the test may not have tried what it says."""

    __module__ = "pytest"  # as pytest's own, so that a filter can name it without an import


# --- options --------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("segstore", "mock segment store").addoption(
        "--segstore-record",
        metavar="DIR",
        help="keep what each test did at its mock stores as a trace, DIR/<test name>.jsonl",
    )
    parser.addini("segstore_traces", "folders in which segstore_trace looks, beside that of the test", "paths", [])
    parser.addini(
        "segstore_unmatched_faults",
        "what comes of a rule that has matched nothing at the end of a test: warn, error or ignore",
        default="warn",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "segstore(**settings): settings of segstore_server: stores, auth_key, faults, controller, containers, …",
    )
    said = config.getini("segstore_unmatched_faults")
    if said not in _UNMATCHED:
        raise pytest.UsageError(f"segstore_unmatched_faults is one of {', '.join(_UNMATCHED)}, not {said!r}")
    folder = config.getoption("segstore_record")
    if folder is not None:
        # Absolute before workers are started, which may have another working directory.
        config.option.segstore_record = str(Path(config.invocation_params.dir, folder))


# --- recordings -----------------------------------------------------------------------------------------------------


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[:_MOST_NAME]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Names the recordings: after the test, with its module where several have that name."""
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
    kept = {
        path
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, path in getattr(report, "user_properties", ())
        if name == _RECORDED
    }
    if kept:
        folder = terminalreporter.config.getoption("segstore_record")
        failed = sum(path.endswith(".failed.jsonl") for path in kept)
        terminalreporter.section("segstore recorded")
        terminalreporter.line(f"{len(kept)} traces in {folder}" + (f", {failed} of failed tests" if failed else ""))


class _Recordings:
    """The recordings of a test: one for each of its servers."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        folder = item.config.getoption("segstore_record")
        self._folder = None if folder is None else Path(folder)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._made: list[FileRecorder] = []

    def new(self) -> FileRecorder | None:
        """What is to record the next server; None if nothing is recorded."""
        if self._folder is None:
            return None
        from segstore import __version__
        from segstore.tracing import FileRecorder
        from segstore.wire import WIRE_VERSION

        self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="segstore-")
        recorder = FileRecorder(
            Path(self._scratch.name, f"{len(self._made)}.wtrace"),
            recorder=f"segstore {__version__} pytest",
            wire_version=WIRE_VERSION,
            values={"test": self._item.nodeid},
        )
        self._made.append(recorder)
        return recorder

    def keep(self) -> None:
        """Writes those at which there was any traffic as fixtures. All servers are stopped."""
        if self._folder is None or self._scratch is None:
            return
        from segstore.tracing import TraceFile, write_trace

        name = self._item.config.stash[_names][self._item.nodeid]
        failed = self._item.stash.get(_failed, False)
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, recorder in enumerate(self._made, 1):
            recorder.close()
            if recorder.failure is not None:
                raise recorder.failure
            stem = name if number == 1 else f"{name}-{number}"
            good, bad = (self._folder / f"{stem}{suffix}" for suffix in (".jsonl", ".failed.jsonl"))
            with TraceFile(recorder.path) as trace:
                records = list(trace.records())
                if not records:
                    continue
                write_trace(bad if failed else good, records, lambda trace=trace: trace.metadata)  # type: ignore[misc]
            if not failed:
                bad.unlink(missing_ok=True)
            self._item.user_properties.append((_RECORDED, str(bad if failed else good)))
        self._scratch.cleanup()


# --- servers --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def segstore_thread() -> Iterator[ServerThread]:
    """The thread, with an event loop, on which all mock stores of the session run."""
    from segstore.testing import ServerThread

    with ServerThread() as thread:
        yield thread


@pytest.fixture
def segstore_cluster(
    segstore_thread: ServerThread, request: pytest.FixtureRequest
) -> Iterator[Callable[..., RunningServer]]:
    """Starts a fresh mock store, or several, when called: segstore_cluster(stores=3, **settings)."""
    recordings = _Recordings(request.node)
    running: list[RunningServer] = []

    def start(**settings: Any) -> RunningServer:
        running.append(segstore_thread.serve(recorder=recordings.new(), **settings))
        return running[-1]

    yield start
    unmatched: list[str] = []
    for each in reversed(running):
        unmatched[:0] = each.faults.unmatched()
        each.stop()
    recordings.keep()
    _tell_unmatched(request, unmatched)


def _tell_unmatched(request: pytest.FixtureRequest, lines: list[str]) -> None:
    said = request.config.getini("segstore_unmatched_faults")
    # A test that failed may never have come to where its faults were to strike.
    if said == "ignore" or request.node.stash.get(_failed, False):
        return
    if said == "error" and lines:
        pytest.fail("\n".join(lines), pytrace=False)
    for line in lines:
        warnings.warn(UnmatchedFault(line), stacklevel=2)


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the markers of a test say; what is nearest to it holds."""
    settings: dict[str, Any] = {}
    for marker in request.node.iter_markers("segstore"):
        if marker.args:
            pytest.fail(f"the marker segstore takes settings by name, not {marker.args!r}", pytrace=False)
        settings = {**marker.kwargs, **settings}
    return settings


@pytest.fixture
def segstore_server(segstore_cluster: Callable[..., RunningServer], request: pytest.FixtureRequest) -> RunningServer:
    """A fresh mock store, as the marker `segstore` says: host, port, controller_uri, requests, wait_for."""
    settings = _settings(request)
    try:
        return segstore_cluster(**settings)
    except (TypeError, ValueError, OSError) as error:
        if not settings:
            raise
        pytest.fail(f"the settings of the marker segstore, {settings}, do not do: {error}", pytrace=False)


@pytest.fixture
def segstore_faults(segstore_server: RunningServer) -> RunningFaults:
    """What is to go wrong at `segstore_server`: segstore_faults.add("type = APPEND_BLOCK_END", do="close after")."""
    return segstore_server.faults


# --- traces ---------------------------------------------------------------------------------------------------------


def _find(request: pytest.FixtureRequest, file: str | Path) -> Path:
    folders = [request.path.parent, *request.config.getini("segstore_traces")]
    for folder in folders:
        for suffix in ("", ".jsonl", ".wtrace"):
            path = Path(folder, f"{file}{suffix}")
            if path.is_file():
                return path
    said = ", ".join(map(str, folders))
    pytest.fail(f"there is no trace {str(file)!r} in {said}; the setting segstore_traces names folders", pytrace=False)


@pytest.fixture
def segstore_trace(
    segstore_thread: ServerThread, request: pytest.FixtureRequest
) -> Iterator[Callable[..., RunningTrace]]:
    """Answers clients from a trace when called: segstore_trace("file", mode="match", missing="error", pace=None).

    With missing="pass" and no `upstream`, what is not in the trace goes to `segstore_server`. At the end of the test a
    request that the trace did not answer is an error, unless check=False; with complete=True also one that nobody made.
    """
    made: list[tuple[Path, RunningTrace, bool, bool]] = []

    def start(file: str | Path, *, check: bool | None = None, complete: bool = False, **options: Any) -> RunningTrace:
        from segstore.tracing import TraceFile

        path = _find(request, file)
        passes = options.get("missing") == "pass"
        if passes and options.get("upstream") is None:
            options["upstream"] = request.getfixturevalue("segstore_server").address
        with TraceFile(path) as opened:
            records = list(opened.records())
        if opened.damages:
            pytest.fail(f"{path}: {opened.damages[0]}", pytrace=False)
        running = segstore_thread.replay(records, **options)
        made.append((path, running, not passes if check is None else check, complete))
        return running

    yield start
    said: list[str] = []
    for path, running, check, complete in made:
        running.stop()
        said += [f"{path.name}: {problem}" for problem in running.problems if check]
        if complete:
            said += [f"{path.name}: {count} × {name} was not asked" for name, count in running.unused().items()]
    if said:
        pytest.fail("\n".join(said), pytrace=False)


# --- the race explorer ----------------------------------------------------------------------------------------------


@pytest.fixture
def segstore_explore(segstore_thread: ServerThread) -> Callable[..., Exploration]:
    """Runs a client once for each point at which its connection can be cut: found = segstore_explore(client).

    The client is a function or a coroutine function that is given a fresh store for each run; of that it is to use the
    addresses only. Options are those of `segstore.explorer.explore`, which a test that is a coroutine awaits itself.
    """
    import asyncio
    import inspect

    from segstore.explorer import explore
    from segstore.testing import WouldBlock, in_a_thread

    def run(client: Callable[..., Any], **options: Any) -> Exploration:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            made = client if inspect.iscoroutinefunction(client) else (lambda mock: in_a_thread(client, mock))
            return segstore_thread.run(explore(made, **options), None)
        raise WouldBlock("segstore_explore", "segstore.explorer.explore(…)")

    return run
