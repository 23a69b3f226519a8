"""The checks of conftest.py fail where they should: a made-up suite leaves things behind on purpose."""

from __future__ import annotations

import asyncio
import logging
import time
import tomllib
from datetime import date
from pathlib import Path

import pytest

from tests.conftest import PARTNER_ERRORS
from tests.official.client import ClientCrashed
from tests.server.coordination.zookeeper_server import ZooKeeperFailed

pytest_plugins = ["pytester"]

LEAVERS = """
import asyncio
import socket
import threading
import time

import pytest
from hypothesis import given, strategies as st

kept = []
done = threading.Event()


async def test_task():
    kept.append(asyncio.create_task(asyncio.sleep(30)))


async def test_transport():
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    kept.append(server)


def test_socket():
    kept.append(socket.socketpair())


def test_thread():
    kept.append(threading.Thread(target=done.wait, daemon=True))
    kept[-1].start()


@given(st.integers())
async def test_task_under_hypothesis(number):
    kept.append(asyncio.create_task(asyncio.sleep(30)))


@pytest.fixture
async def leaving_fixture():
    yield
    kept.append(asyncio.create_task(asyncio.sleep(30)))


async def test_task_of_a_fixture(leaving_fixture):
    pass
"""

KEEPERS = """
import asyncio
import socket
import threading

import pytest
from hypothesis import given, strategies as st


@pytest.fixture(scope="module")
def pair():
    left, right = socket.socketpair()
    yield left
    left.close()
    right.close()


def test_socket_of_the_module(pair):
    assert pair.fileno() >= 0


async def test_connection_that_is_closed():
    async def answer(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


async def test_thread_of_the_loop():
    assert await asyncio.to_thread(int, "7") == 7


@given(st.integers())
async def test_task_that_ends(number):
    assert await asyncio.create_task(asyncio.sleep(0, number)) == number


def test_not_here():
    pytest.skip("a part of this machine is not here")


@pytest.mark.needs("git")
def test_needing_a_part():
    pass
"""

UNLUCKY = """
import pytest
from pathlib import Path

PARTNER = pytest.mark.needs("a program of other people")


class Crashed(Exception):
    pass


def first(name):
    tried = Path(name)
    tried.write_text(tried.read_text() + "x" if tried.exists() else "x")
    return tried.read_text() == "x"


@PARTNER
def test_whose_partner_crashes_once():
    if first("once"):
        raise Crashed("it is gone")


@pytest.mark.needs("git")
def test_without_a_partner():
    if first("alone"):
        raise Crashed("it is gone")


@PARTNER
def test_that_waits_too_long():
    if first("waits"):
        raise TimeoutError("no answer")


@PARTNER
def test_that_waits_too_long_when_its_partner_has_crashed():
    if first("context"):
        try:
            raise Crashed("it is gone")
        except Crashed:
            raise TimeoutError("no answer")


@PARTNER
def test_whose_partner_crashes_as_a_wait_has_ended():
    if first("cause"):
        raise Crashed("it is gone") from TimeoutError("no answer")


@PARTNER
def test_that_finds_something_wrong():
    assert not first("wrong")


@PARTNER
def test_that_finds_something_wrong_when_its_partner_has_crashed():
    if first("wrong too"):
        try:
            raise Crashed("it is gone")
        except Crashed:
            assert not "what it has written"
"""

CRASHING = """
import pytest
from pathlib import Path


class Crashed(Exception):
    pass


@pytest.mark.needs("a program of other people")
@pytest.mark.parametrize("number", range({count}))
def test_crashing(number):
    tried = Path(str(number))
    if not tried.exists():
        tried.touch()
        raise Crashed("it is gone")
"""

PARTNER = """
PARTS["a program of other people"] = lambda: True
PARTNERS = {"a program of other people"}
PARTNER_ERRORS = ("Crashed",)
"""

WHERE = """
import os

import pytest


@pytest.mark.parametrize("number", range(6))
def test_where(number):
    with open("where", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""

SETTINGS = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
markers = needs(part)
"""


def run(pytester: pytest.Pytester, source: str, *options: str, more: str = "") -> pytest.RunResult:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text(encoding="utf-8") + more)
    pytester.makepyfile(source)
    pytester.makeini(SETTINGS)
    return pytester.runpytest_subprocess("--import-mode=importlib", "-p", "no:cacheprovider", *options, timeout=120)


def test_a_test_that_leaves_a_task_socket_or_thread_fails_and_names_it(pytester: pytest.Pytester) -> None:
    result = run(pytester, LEAVERS)
    result.assert_outcomes(passed=6, errors=6)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_task *",
            "left behind: task Task-* of *sleep*",
            "*ERROR at teardown of test_transport *",
            "*left behind: socket *127.0.0.1*",
            "*ERROR at teardown of test_socket *",
            "left behind: socket *, socket *",
            "*ERROR at teardown of test_thread *",
            "left behind: thread *",
            "*ERROR at teardown of test_task_under_hypothesis *",
            "left behind: task Task-* of *sleep* and * more",
            "*ERROR at teardown of test_task_of_a_fixture *",
            "left behind: task Task-* of *sleep*",
        ]
    )


def test_a_test_that_closes_what_it_opens_passes_and_what_did_not_run_is_named(pytester: pytest.Pytester) -> None:
    result = run(pytester, KEEPERS)
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(["NOT RUN: a part of this machine is not here (1 test)"])


def test_a_missing_part_is_named_when_tests_run_in_parallel(pytester: pytest.Pytester) -> None:
    result = run(pytester, KEEPERS, "-n", "2")
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(["NOT RUN: a part of this machine is not here (1 test)"])


def tried_again(result: pytest.RunResult) -> list[str]:
    return [line.rpartition("::")[2] for line in result.outlines if line.startswith("second try: ")]


def test_only_a_program_of_others_that_fails_itself_gives_its_test_a_second_try(pytester: pytest.Pytester) -> None:
    result = run(pytester, UNLUCKY, more=PARTNER)
    result.assert_outcomes(passed=1, failed=6)
    assert tried_again(result) == ["test_whose_partner_crashes_once"]
    result.stdout.fnmatch_lines(["  the first, in its call: *", "E *Crashed: it is gone"])


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "in parallel"])
def test_a_run_with_more_than_one_second_try_fails(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    result = run(pytester, CRASHING.format(count=2), *options, more=PARTNER)
    result.assert_outcomes(passed=2)
    assert len(tried_again(result)) == 2
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "FAILED: 2 second tries in one run; 1 is allowed" in result.outlines


def test_a_second_try_that_is_not_in_the_ledger_is_printed_as_its_entry(pytester: pytest.Pytester) -> None:
    source, ledger = CRASHING.format(count=1), pytester.path / "second_tries.toml"
    result = run(pytester, source, more=PARTNER)
    assert result.ret == pytest.ExitCode.OK
    begins = result.outlines.index("[[second_try]]")
    entry = "\n".join(result.outlines[begins : begins + 4])
    (found,) = tomllib.loads(entry)["second_try"]
    assert found["test"].endswith("::test_crashing[0]")
    assert found["first"].endswith("Crashed: it is gone")
    ledger.write_text(entry, "utf-8")
    (pytester.path / "0").unlink()
    again = run(pytester, source, more=PARTNER)
    assert len(tried_again(again)) == 1
    assert "[[second_try]]" not in again.outlines


def test_every_entry_of_the_ledger_names_a_test_that_there_is() -> None:
    folder = Path(__file__).parent
    for each in tomllib.loads((folder / "second_tries.toml").read_text("utf-8")).get("second_try", []):
        assert each.keys() == {"test", "first", "date"}, each
        assert isinstance(each["date"], date)
        path, _, name = each["test"].partition("::")
        function = name.partition("[")[0]
        assert f"def {function}(" in (folder.parent / path).read_text("utf-8"), each["test"]


@pytest.mark.parametrize("error", [ClientCrashed, ZooKeeperFailed])
def test_the_errors_of_partners_have_the_names_that_give_a_second_try(error: type[Exception]) -> None:
    assert error.__name__ in PARTNER_ERRORS
    assert "ClientFailed" not in PARTNER_ERRORS, "which a client also has that waits for a server of ours"


def test_a_group_is_run_by_one_worker_and_other_tests_by_all(pytester: pytest.Pytester) -> None:
    options = ("-n", "2", "--dist", "loadgroup")
    name = "test_a_group_is_run_by_one_worker_and_other_tests_by_all.py"
    for more, workers in ((f"\nGROUPS = {{{name!r}: 'some'}}\n", 1), ("", 2)):
        run(pytester, WHERE, *options, more=more).assert_outcomes(passed=6)
        where = pytester.path / "where"
        assert len(set(where.read_text().split())) == workers
        where.unlink()


def test_the_log_has_no_warnings_of_a_busy_machine_and_all_others(caplog: pytest.LogCaptureFixture) -> None:
    async def is_slow() -> None:
        asyncio.get_running_loop().slow_callback_duration = 0.001
        time.sleep(0.002)  # noqa: ASYNC251 — the loop is to notice that it stood still

    asyncio.run(is_slow(), debug=True)
    logging.getLogger("asyncio").warning("socket.send() raised exception")
    assert caplog.messages == ["socket.send() raised exception"]
