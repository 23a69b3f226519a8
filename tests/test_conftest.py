"""The checks of conftest.py fail where they should: a made-up suite leaves things behind on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def once(name):
    tried = Path(name)
    tried.write_text(tried.read_text() + "x" if tried.exists() else "x")
    if tried.read_text() != "xx":
        raise TimeoutError("too slow")


@pytest.mark.needs("a program of other people")
def test_with_a_partner():
    once("partner")


@pytest.mark.needs("git")
def test_without_one():
    once("alone")


@pytest.mark.needs("a program of other people")
def test_that_fails_twice():
    raise TimeoutError("always too slow")


@pytest.mark.needs("a program of other people")
def test_that_finds_something_wrong():
    tried = Path("wrong")
    assert tried.exists() or tried.write_text("") == -1
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


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "in parallel"])
def test_a_test_with_a_program_of_others_gets_a_second_try_by_name_and_no_other(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    partner = "a program of other people"
    result = run(pytester, UNLUCKY, *options, more=f"\nPARTS[{partner!r}] = lambda: True\nPARTNERS = {{{partner!r}}}\n")
    result.assert_outcomes(passed=1, failed=3)
    named = [line for line in result.outlines if line.startswith("passed at the second try: ")]
    assert [line.rpartition("::")[2] for line in named] == ["test_with_a_partner"]
    result.stdout.fnmatch_lines(["  the first, in its call: *", "E * TimeoutError: too slow"])


def test_a_group_is_run_by_one_worker_and_other_tests_by_all(pytester: pytest.Pytester) -> None:
    options = ("-n", "2", "--dist", "loadgroup")
    name = "test_a_group_is_run_by_one_worker_and_other_tests_by_all.py"
    for more, workers in ((f"\nGROUPS = {{{name!r}: 'some'}}\n", 1), ("", 2)):
        run(pytester, WHERE, *options, more=more).assert_outcomes(passed=6)
        where = pytester.path / "where"
        assert len(set(where.read_text().split())) == workers
        where.unlink()
