"""The pytest plugin in test suites of its own: synchronous, with pytest-asyncio, under xdist, recording."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pytest_suites import SLOW_S, STRICT, WRITES, passed, recorded, slow

pytest_plugins = ["pytester", "tests.pytest_suites"]
pytestmark = pytest.mark.usefixtures("grpc_runs")


def test_a_synchronous_test_has_a_store_and_each_has_a_fresh_one(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        from talk import *
        addresses = []

        def test_first(segstore_server):
            addresses.append(segstore_server.address)
            assert talk(segstore_server, *BEGIN, append(1, b"a")) == [
                "HELLO", "SEGMENT_CREATED", "APPEND_SETUP", "DATA_APPENDED"]
            seen = segstore_server.wait_for("type = APPEND_BLOCK_END", stage="replied")
            assert (seen.segments, seen.event_number) == ((SEGMENT,), 1)
            assert segstore_server.events(SEGMENT) == [b"a"]
            assert len(segstore_server.requests()) == 4

        def test_second(segstore_server):
            assert segstore_server.requests() == []
            assert segstore_server.segments() == []
            import pytest
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(addresses[0])
    """)
    passed(suite.runpytest_inprocess(*STRICT), 2)


def test_a_coroutine_talks_to_the_store_and_waits_by_await(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from segstore.testing.servers import WouldBlock
        from talk import *

        @pytest.mark.asyncio
        async def test_it(segstore_server, segstore_faults):
            segstore_faults.add("type = APPEND_BLOCK_END", nth=2, do="hold after", name="ack")
            talking = asyncio.create_task(talk_async(segstore_server, *BEGIN, append(1, b"a"), append(2, b"b")))
            await segstore_server.aio.wait_for("type = APPEND_BLOCK_END", count=2, stage="applied")
            assert segstore_server.events(SEGMENT) == [b"a", b"b"]
            assert not talking.done()
            with pytest.raises(WouldBlock):
                segstore_server.wait_for()
            segstore_faults.release("ack")
            assert (await talking)[-1] == "DATA_APPENDED"
    """)
    passed(suite.runpytest_inprocess(*STRICT, "-o", "asyncio_mode=strict", "-o", "asyncio_debug=true"), 1)


def test_the_marker_gives_settings_and_the_nearest_holds(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from talk import *
        pytestmark = pytest.mark.segstore(containers=6, wire_version=15)

        @pytest.mark.segstore(stores=2, wire_version=17)
        def test_near(segstore_server):
            assert len(segstore_server.addresses) == 2
            settings = segstore_server.call(lambda cluster: cluster.settings.store)
            assert (settings.containers, settings.wire_version) == (6, 17)

        @pytest.mark.segstore(auth_key="secret")
        def test_tokens(segstore_server):
            assert talk(segstore_server, *BEGIN[:2])[-1] == "AUTH_TOKEN_CHECK_FAILED"

        @pytest.mark.segstore(host="127.0.0.2")
        def test_host(segstore_server):
            assert segstore_server.host == "127.0.0.2"
    """)
    passed(suite.runpytest_inprocess(*STRICT), 3)


def test_servers_have_a_process_of_their_own_if_so_set(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import os, pytest
        from talk import *

        PARENT = os.getpid()

        def pid(cluster):
            return os.getpid()

        def test_as_set(segstore_server, segstore_cluster, segstore_trace):
            from segstore.testing import InAnotherProcess
            with pytest.raises(InAnotherProcess):
                segstore_server.call(lambda cluster: os.getpid())
            assert talk(segstore_server, *BEGIN, append(1, b"a"))[-1] == "DATA_APPENDED"
            assert segstore_server.events(SEGMENT) == [b"a"]
            assert segstore_cluster(process=False).call(pid) == PARENT
            assert segstore_cluster(process=True).call(pid) != PARENT

        @pytest.mark.segstore(process=True, long_poll_s=0.05)
        def test_as_marked(segstore_server):
            assert segstore_server.call(pid) != PARENT
    """)
    result = suite.runpytest_inprocess(*STRICT, "-o", "segstore_process=yes", "--segstore-record=kept")
    passed(result, 2)
    assert recorded(suite.path / "kept") == ["test_as_set.jsonl"]


def test_a_fault_file_is_found_beside_the_test(suite: pytest.Pytester) -> None:
    folder = suite.mkdir("deeper")
    (folder / "beside.yaml").write_text("rules: [{name: never, match: type = SEAL_SEGMENT, do: drop}]\n")
    (folder / "test_deeper.py").write_text(
        "import pytest\n\n@pytest.mark.segstore(faults='beside.yaml')\n"
        "def test_with_its_file(segstore_server):\n    assert len(segstore_server.faults.unmatched()) == 1\n"
    )
    passed(suite.runpytest_inprocess("-q", "-o", "segstore_unmatched_faults=ignore"), 1)


def test_settings_that_do_not_do_are_said_without_a_traceback(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest

        @pytest.mark.segstore(auth_key="a-secret-key", auht_key="another-secret")
        def test_named_wrongly(segstore_server): ...

        @pytest.mark.segstore("a-secret-key")
        def test_by_position(segstore_server): ...

        @pytest.mark.segstore(faults="missing.yaml")
        def test_of_a_file(segstore_server): ...

        @pytest.mark.segstore(containers=-1)
        def test_of_a_value(segstore_server): ...

        @pytest.mark.segstore(controller={"lease_cap": 1})
        def test_of_the_controller(segstore_server): ...

        @pytest.mark.segstore(users="alice:pw")
        def test_of_users(segstore_server): ...
    """)
    result = suite.runpytest_inprocess(*STRICT, "-rN")
    passed(result, 0, errors=6)
    start = "the settings of the marker segstore"
    result.stdout.fnmatch_lines(
        [
            f"{start} (auth_key, auht_key) are invalid: auht_key: there is no such option (auth_key[?])",
            "the marker segstore takes settings by name, *",
            "*missing.yaml*",
            f"{start} (containers) are invalid: containers: it must be greater than 0",
            f"{start} (controller) are invalid: controller.lease_cap: *(lease_cap_ms[?])",
            f"{start} (users) are invalid: users are lines of a password file, in a list",
        ]
    )
    assert "secret" not in result.stdout.str()
    assert "Traceback" not in result.stdout.str()
    assert "pydantic" not in result.stdout.str()


def test_an_error_stands_at_the_line_of_the_test_and_not_below_frames_of_the_plugin(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        def test_release(segstore_faults):
            segstore_faults.release("typo")

        def test_read(segstore_server):
            segstore_server.read("a/b/0")

        def test_start(segstore_cluster):
            segstore_cluster(stroes=3)

        def test_replay(segstore_trace):
            segstore_trace(__file__)
        """
    )
    result = suite.runpytest_inprocess("-q", "--tb=short", "-o", "segstore_process=no")
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(['    segstore_faults.release("typo")', "E * no rule has the name 'typo'; *"])
    for file in ("hosting.py", "testing.py", "served.py", "pytest_plugin.py", "concurrent/futures"):
        result.stdout.no_fnmatch_line(f"*{file}:*: in *")
    again = suite.runpytest_inprocess("-q", "--full-trace", "-k", "release")
    again.stdout.fnmatch_lines(["*testing/servers.py:*"])


@pytest.mark.needs("pravega, the official client")
@slow
def test_a_tap_stands_before_the_store_or_before_another(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from talk import *

        def store_of(server):
            return f"{server.host}:{server.port}"

        def test_before_the_store(segstore_server, segstore_tap):
            tap = segstore_tap(store=store_of(segstore_server), faults="faults.yaml")
            assert tap.address != segstore_server.address
            assert talk(tap, *BEGIN, append(1, b"a"), append(2, b"b"))[-2:] == ["DATA_APPENDED", "closed"]
            assert segstore_server.events(SEGMENT) == [b"a", b"b"]
            assert [each.action for each in tap.faults.decisions] == ["close after"]

        def test_before_its_controller(segstore_server, segstore_tap):
            tap = segstore_tap()
            assert tap.controller_uri != segstore_server.controller_uri
            assert talk(tap, *BEGIN)[-1] == "APPEND_SETUP"  # at a store that the controller named
            assert tap.address not in segstore_server.addresses

        @pytest.mark.asyncio
        async def test_what_waits_is_awaited(segstore_server, segstore_tap):
            tap = segstore_tap(store=store_of(segstore_server))
            tap.faults.add("type = APPEND_BLOCK_END", do="hold", name="slow")
            talking = asyncio.create_task(talk_async(tap, *BEGIN, append(1, b"a")))
            await tap.aio.wait_held("slow")
            assert segstore_server.events(SEGMENT) == []
            tap.faults.release("slow")
            await talking
            assert (await tap.aio.wait_for("type = APPEND_BLOCK_END", stage="replied")).reply == "DATA_APPENDED"

        def test_a_rule_that_nothing_matches_is_reported(segstore_server, segstore_tap):
            segstore_tap(store=store_of(segstore_server)).faults.add("type = SEAL_SEGMENT", do="close")
    """)
    suite.makefile(".yaml", faults="rules: [{match: type = APPEND_BLOCK_END, nth: 2, do: close after}]")
    result = suite.runpytest_inprocess(*STRICT, "-o", "segstore_unmatched_faults=error")
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(["*fault 'rule 1' has matched nothing: match 'type = SEAL_SEGMENT'*"])


def test_faults_strike_and_rules_that_matched_nothing_are_warned_of(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        from talk import *

        def test_it(segstore_server, segstore_faults):
            segstore_faults.add("type = APPEND_BLOCK_END", do="close after", name="lost ack")
            segstore_faults.add("type = MERGE_SEGMENTS", do="close", name="idle")
            assert talk(segstore_server, *BEGIN, append(1, b"a"))[-1] == "closed"
            assert segstore_server.events(SEGMENT) == [b"a"]
            assert [each.rule for each in segstore_faults.decisions] == ["lost ack"]
    """)
    result = suite.runpytest_inprocess("-q", "-Wdefault")
    passed(result, 1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*test_*.py:*: UnmatchedFault: fault 'idle' has matched nothing: name 'idle', match *"]
    )
    passed(suite.runpytest_inprocess("-q", "-Wdefault", "-Wignore::pytest.PytestWarning"), 1)


def test_a_function_of_a_rule_that_fails_is_an_error_of_its_test(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import socket
        import pytest

        @pytest.mark.segstore(process=False)
        def test_with_a_broken_function(segstore_server):
            @segstore_server.fault("type = HELLO")
            def greeted(request):
                assert request.command.high_version == 1, "an old client"

            with socket.create_connection((segstore_server.host, segstore_server.port)) as client:
                client.sendall(bytes.fromhex("ffffff81 00000008 00000011 00000005"))
                assert client.recv(1) == b""

        def test_after_it(segstore_server):
            assert segstore_server.segments() == []
    """)
    result = suite.runpytest_inprocess("-q")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*the function of fault 'greeted' failed at request 1, HELLO: AssertionError: *"])


FAILS = """
    import pytest
    from talk import *

    @pytest.fixture
    def opened(segstore_server):
        with socket.create_connection(segstore_server.address) as connection:
            yield connection

    def test_server(segstore_server, segstore_faults, opened):
        segstore_faults.add("type = CREATE_SEGMENT", do="WrongHost", name="once", times=1)
        talk(segstore_server, *BEGIN)
        for number in range(30):
            talk(segstore_server, BEGIN[0])
        opened.sendall(encode(BEGIN[0]))
        segstore_server.wait_for("type = HELLO", count=32, stage="replied")
        assert not segstore_server.address

    def test_tap(segstore_server, segstore_tap):
        segstore_server.create_stream("scope", "stream")
        talk(segstore_tap(store="%s:%d" % segstore_server.address), BEGIN[0])
        raise ValueError

    def test_trace(segstore_trace):
        talk(segstore_trace("test_writes", missing="error"), BEGIN[0], BEGIN[1], KeepAlive())

    def test_fault(segstore_server):
        segstore_server.faults.add("type = SEAL_SEGMENT and connection = 1", do="drop", name="idle")
        talk(segstore_server, BEGIN[0])

    def test_passes(segstore_server):
        talk(segstore_server, BEGIN[0])

    def test_of_its_own():
        raise ValueError
"""


def test_a_failed_test_ends_with_what_its_servers_have_seen(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_writes=WRITES)
    suite.runpytest_inprocess("-q", "--segstore-record=.")
    suite.makepyfile(test_fails=FAILS)
    options = "-o", "segstore_unmatched_faults=error", "-o", "segstore_process=yes"
    result = suite.runpytest_inprocess("-q", "--tb=short", *options, "test_fails.py")
    result.assert_outcomes(passed=3, failed=3, errors=2)
    section = "*- segstore {} -*"
    segment = "scope/stream/0.#epoch.0"
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_trace*",
            section.format("trace 1"),
            "requests (3):",
            f"  request 2: CREATE_SEGMENT of {segment} on connection 1: answered as request 2 of the trace",
            "  request 3: KEEP_ALIVE on connection 1: a problem, missing='error'",
            "problems (1):",
            "open connections (0)",
            "*ERROR at teardown of test_fault*",
            section.format("server 1"),
            "fault rules (1):",
            "  idle: matched 0, fired 0",
            "decisions (0)",
            "*FAILURES*",
            section.format("server 1"),
            "requests (last 20 of 34):",
            "  request 34: HELLO on connection 1: HELLO after * ms",
            "fault rules (1):",
            "  once: matched 1, fired 1",
            "decisions (1):",
            f"  once: error WRONG_HOST at request 2, CREATE_SEGMENT of {segment} on connection 2, match 1",
            "open connections (1):",
            "  connection 1 from 127.0.0.1:* to store 0: 16 bytes in, 16 bytes out",
            section.format("server 1"),
            section.format("tap 2"),
            "requests (1):",
        ]
    )
    assert result.stdout.str().count(" segstore ") == 5
    assert "request 14:" not in result.stdout.str()


@slow
def test_an_error_of_the_client_is_shown_without_its_frames(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest
        from segstore.client import connect

        def test_that_fails_before_the_client_is_fully_imported():
            assert not "ready"

        @pytest.mark.asyncio
        async def test_no_stream(segstore_server):
            async with connect(f"tcp://{segstore_server.controller_uri}") as pravega:
                async with pravega.event_writer("a", "none") as writer:
                    await writer.flush()
    """)
    result = suite.runpytest_subprocess("-q", timeout=SLOW_S)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            '>   *async with pravega.event_writer("a", "none") as writer:',
            "E * segstore.client.errors.NoSuchStream: getCurrentSegments of a/none at *: stream a/none does not exist",
            "E * create it or correct the name (*",
        ]
    )
    result.stdout.no_fnmatch_line("*client/controller/*")
    again = suite.runpytest_inprocess("-q", "--full-trace", "-k", "no_stream")
    again.stdout.fnmatch_lines(["*client/controller/channels.py:*: NoSuchStream"])


@pytest.mark.parametrize("name", ["-", "below/run.jsonl"])
def test_one_file_for_all_recordings_is_a_wrong_option(suite: pytest.Pytester, name: str) -> None:
    suite.makepyfile(test_writes=WRITES)
    result = suite.runpytest_inprocess(*STRICT, f"--segstore-record={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = f"ERROR: --segstore-record={name}: give a folder, in which each test has a file of its own, TEST.jsonl"
    result.stderr.fnmatch_lines([said])
    assert not (suite.path / name).exists()


def test_under_xdist_each_worker_has_its_own_and_recordings_come_together(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import pytest, time
        from talk import *

        @pytest.mark.parametrize("number", range(8))
        def test_it(segstore_server, number, worker_id):
            assert worker_id in ("gw0", "gw1")
            assert segstore_server.segments() == []
            assert talk(segstore_server, *BEGIN, append(1, b"%d" % number))[-1] == "DATA_APPENDED"
            assert segstore_server.events(SEGMENT) == [b"%d" % number]
    """)
    result = suite.runpytest_subprocess(*STRICT, "-n2", "--segstore-record=kept", timeout=SLOW_S)
    passed(result, 8)
    result.stdout.fnmatch_lines([f"8 traces in {suite.path / 'kept'}"])
    assert recorded(suite.path / "kept") == [f"test_it-{number}.jsonl" for number in range(8)]


@slow
def test_unused_it_imports_nothing_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("""
import sys, threading

def test_it(request):
    assert request.config.pluginmanager.has_plugin("segstore")
    loaded = {name for name in sys.modules if name.partition(".")[0] in ("segstore", "construct", "pydantic", "grpc")}
    assert loaded == {"segstore", "segstore.pytest_plugin"}
    assert threading.active_count() == 1
""")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *STRICT, "-o", "asyncio_default_fixture_loop_scope=function", "test_other.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=SLOW_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
