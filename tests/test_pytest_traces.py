"""The pytest plugin's recordings, traces and explorer, in test suites of their own."""

import shlex
from pathlib import Path

import pytest

from segstore.traces import TraceFile
from segstore.wire.trace import RecordKind
from tests.pytest_suites import STRICT, WRITES, passed, recorded

pytest_plugins = ["pytester", "tests.pytest_suites"]
pytestmark = pytest.mark.usefixtures("grpc_runs")


def test_what_a_test_did_is_kept_as_a_fixture_that_answers_the_next(suite: pytest.Pytester) -> None:
    suite.makepyfile(WRITES)
    result = suite.runpytest_inprocess(*STRICT, "--segstore-record=traces")
    passed(result, 1)
    result.stdout.fnmatch_lines([f"1 trace in {suite.path / 'traces'}"])
    assert recorded(suite.path / "traces") == ["test_writes.jsonl"]
    with TraceFile(suite.path / "traces" / "test_writes.jsonl") as trace:
        kinds = [record.kind for record in trace.records()]
        assert trace.metadata.values["test"].endswith("::test_writes")
    assert (kinds[0], kinds[-1], kinds.count(RecordKind.FRAME)) == (RecordKind.OPEN, RecordKind.CLOSE, 8)
    suite.makepyfile(
        test_replays="""
        import pytest
        from talk import *

        def test_strictly(segstore_trace):
            trace = segstore_trace("test_writes", complete=True)
            assert talk(trace, *BEGIN, append(1, b"a"))[-1] == "DATA_APPENDED"

        @pytest.mark.asyncio
        async def test_by_content(segstore_trace):
            trace = segstore_trace("traces/test_writes.jsonl", mode="match")
            assert await talk_async(trace, BEGIN[0], BEGIN[1]) == ["HELLO", "SEGMENT_CREATED"]
            assert trace.unused() == {"SETUP_APPEND": 1, "APPEND_BLOCK_END": 1}
    """
    )
    passed(suite.runpytest_inprocess(*STRICT, "test_replays.py", "-o", "segstore_traces=traces"), 2)


def test_what_the_trace_does_not_answer_fails_the_test_unless_that_is_expected(suite: pytest.Pytester) -> None:
    suite.makepyfile(WRITES)
    suite.runpytest_inprocess("-q", "--segstore-record=.")
    suite.makepyfile(
        test_replays="""
        from talk import *
        OTHER = Hello(17, 5), CreateSegment(1, "scope/other/0.#epoch.0", 0, 0, "", 0)

        def test_differs(segstore_trace):
            talk(segstore_trace("test_writes", missing="error"), *OTHER)

        def test_differs_often(segstore_trace):
            talk(segstore_trace("test_writes", missing="error"), OTHER[0], *[OTHER[1]] * 25)

        def test_is_not_complete(segstore_trace):
            talk(segstore_trace("test_writes", complete=True), *BEGIN)

        def test_is_expected(segstore_trace):
            trace = segstore_trace("test_writes", check=False, missing="close")
            assert talk(trace, *OTHER)[-1] == "closed"
            assert [each.request for each in trace.problems] == ["CREATE_SEGMENT"]

        def test_goes_on_to_the_mock(segstore_trace, segstore_server):
            assert talk(segstore_trace("test_writes", missing="pass"), *OTHER)[-1] == "SEGMENT_CREATED"
            assert "scope/other/0.#epoch.0" in segstore_server.segments()

        def test_is_not_there(segstore_trace):
            segstore_trace("nowhere")

        def test_is_misspelt(segstore_trace):
            segstore_trace("test_write")

        def test_fails_unchecked(segstore_trace):
            import pytest
            with pytest.raises(ValueError, match="does not go with check=False"):
                segstore_trace("test_writes", check=False, missing="fail")
    """
    )
    result = suite.runpytest_inprocess("-q", "test_replays.py")
    result.assert_outcomes(passed=6, errors=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "test_writes.jsonl: connection 1: CREATE_SEGMENT differs from the trace: segment: *",
            "test_writes.jsonl: and 5 more problems",
            "test_writes.jsonl: 1 × APPEND_BLOCK_END was not requested",
            f"there is no trace 'nowhere' in {suite.path}; *",
            f"there is no trace 'test_write' in {suite.path} (test_writes?); *",
        ]
    )


def test_the_first_problem_or_the_deadline_ends_a_test_that_would_wait(suite: pytest.Pytester) -> None:
    suite.makepyfile(WRITES)
    suite.runpytest_inprocess("-q", "--segstore-record=.")
    suite.makepyfile(
        test_replays="""
        import pytest, threading
        from talk import *
        OTHER = Hello(17, 5), CreateSegment(1, "scope/other/0.#epoch.0", 0, 0, "", 0)

        def test_in_a_wait(segstore_trace):
            talk(segstore_trace("test_writes"), *OTHER)
            threading.Event().wait()

        def test_in_a_system_call(segstore_trace):
            trace = segstore_trace("test_writes")
            with socket.create_connection(trace.address) as opened:
                opened.sendall(b"".join(map(encode, OTHER)))
                while True:
                    opened.recv(1 << 16)

        @pytest.mark.asyncio
        async def test_in_a_coroutine(segstore_trace):
            trace = segstore_trace("test_writes")
            with socket.create_connection(trace.address) as opened:
                opened.sendall(b"".join(map(encode, OTHER)))  # nothing is read: the problem may come at any time
                await asyncio.Event().wait()

        def test_too_late(segstore_trace):
            segstore_trace("test_writes", timeout_s=0.05)
            threading.Event().wait()

        def test_after_them(segstore_trace):
            assert talk(segstore_trace("test_writes", timeout_s=60), *BEGIN)[-1] == "APPEND_SETUP"
    """
    )
    result = suite.runpytest_inprocess("-q", "--tb=short", "test_replays.py", "-o", "segstore_process=yes")
    result.assert_outcomes(passed=1, failed=4)
    problem = "test_writes.jsonl: connection 1: CREATE_SEGMENT differs from the trace: segment: 'scope/other/*"
    for line in (
        f"E * Failed: {problem}",
        "E * Failed: test_writes.jsonl: the trace was still answering clients after 0.05 s",
    ):
        result.stdout.fnmatch_lines([line])
    assert result.stdout.str().count("E   Failed: test_writes.jsonl: connection 1") == 2
    result.stdout.fnmatch_lines(
        ["__* test_in_a_coroutine *", problem, "test_replays.py:*: await asyncio.Event().wait()"]
    )
    result.stdout.no_fnmatch_line("*selectors.py*")


def test_a_recording_of_the_test_itself_takes_precedence(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        from talk import *

        def test_own(segstore_cluster):
            talk(segstore_cluster(record="own.jsonl"), *BEGIN)
            talk(segstore_cluster(record=None), *BEGIN)
    """)
    passed(suite.runpytest_inprocess(*STRICT, "--segstore-record=kept"), 1)
    assert recorded(suite.path / "kept") == ["test_own.jsonl"]
    assert (suite.path / "own.jsonl").read_text().startswith('{"segstore_trace"')


def test_recordings_have_names_of_their_own_and_those_without_traffic_are_none(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_a="""
        import pytest
        from talk import *

        class TestSome:
            def test_same(self, segstore_server): talk(segstore_server, BEGIN[0])

        @pytest.mark.parametrize("what", ["x/../y", "x y"])
        def test_each(segstore_server, what): talk(segstore_server, BEGIN[0])

        def test_nothing(segstore_server): ...

        def test_two(segstore_cluster):
            for _ in range(2):
                talk(segstore_cluster(), BEGIN[0])
    """,
        test_b="""
        from talk import *

        def test_same(segstore_server): talk(segstore_server, BEGIN[0])
    """,
    )
    passed(suite.runpytest_inprocess(*STRICT, "--segstore-record", "kept"), 6)
    assert recorded(suite.path / "kept") == [
        "test_a.TestSome.test_same.jsonl",
        "test_b.test_same.jsonl",
        "test_each-x-..-y.jsonl",
        "test_each-x-y.jsonl",
        "test_two-2.jsonl",
        "test_two.jsonl",
    ]


def test_a_test_that_failed_leaves_the_recording_of_one_that_passed(suite: pytest.Pytester) -> None:
    suite.makepyfile(WRITES)
    suite.runpytest_inprocess("-q", "--segstore-record=kept")
    good = (suite.path / "kept" / "test_writes.jsonl").read_bytes()
    suite.makepyfile(WRITES + "        raise ValueError\n")
    result = suite.runpytest_inprocess("-q", "--segstore-record=kept")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["1 trace in *kept, 1 of failed tests"])
    assert recorded(suite.path / "kept") == ["test_writes.failed.jsonl", "test_writes.jsonl"]
    assert (suite.path / "kept" / "test_writes.jsonl").read_bytes() == good
    suite.makepyfile(WRITES)
    suite.runpytest_inprocess("-q", "--segstore-record=kept")
    assert recorded(suite.path / "kept") == ["test_writes.jsonl"]


def test_the_recording_of_a_failed_test_is_suggested_where_no_other_is(suite: pytest.Pytester) -> None:
    (suite.path / "test_writes.failed.jsonl").write_text("")
    suite.makepyfile("def test_replays(segstore_trace):\n    segstore_trace('test_writes')\n")
    result = suite.runpytest_inprocess("-q")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"there is no trace 'test_writes' in {suite.path} (test_writes.failed?); *"])


def test_a_client_is_cut_at_every_point_and_what_it_loses_is_found(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        import sys
        import pytest
        from segstore.testing.servers import WouldBlock
        from talk import *

        def careless(mock):
            talk(mock, *BEGIN, append(1, b"a"))

        async def careless_too(mock):
            await talk_async(mock, *BEGIN, append(1, b"a"))

        @pytest.mark.segstore_explore(match="type = APPEND_BLOCK_END", failures=("cut before", "cut after"))
        @pytest.mark.parametrize("client", [careless, careless_too])
        def test_it(segstore_explore, client):
            found = segstore_explore(client)
            assert found.runs == 4
            (finding,) = found.findings
            assert finding.name == "cut before at APPEND_BLOCK_END 1"
            assert "lost" in str(finding)

        def test_a_command_is_run_and_the_official_client_needs_one(segstore_explore, monkeypatch):
            with pytest.raises(ValueError, match="made no request"):
                segstore_explore("true")
            import ast
            monkeypatch.setitem(sys.modules, "pravega_client", sys)
            with pytest.raises(pytest.fail.Exception, match="holds the interpreter lock"):
                segstore_explore(careless)
            monkeypatch.setitem(sys.modules, "pravega_client", ast)
            assert segstore_explore(careless, failures=["cut before"]).findings

        @pytest.mark.asyncio
        async def test_a_coroutine_awaits_it_itself(segstore_explore):
            with pytest.raises(WouldBlock, match="segstore.explore.explore"):
                segstore_explore(careless_too)
    """)
    passed(suite.runpytest_inprocess(*STRICT), 4)


def test_a_test_fails_if_its_client_breaks_a_rule(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import socket
        from talk import *

        def test_in_order(segstore_server):
            talk(segstore_server, *BEGIN, append(1, b"a"))

        def test_with_half_a_frame(segstore_server):
            with socket.create_connection((segstore_server.host, segstore_server.port)) as client:
                client.sendall(b"nonsense")
                client.shutdown(socket.SHUT_WR)
                while client.recv(100):
                    pass

        def test_with_replies_that_faults_make(segstore_server, segstore_faults):
            for do in ({"duplicate": "reply"}, {"close": "after", "reply_bytes": 5}):
                segstore_faults.add("type = SETUP_APPEND", do=do, times=1)
                talk(segstore_server, *BEGIN)
        """
    )
    result = suite.runpytest_inprocess(*STRICT, "--segstore-check")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*frames-only: whole frames are sent"])
    see = next(line for line in result.stdout.lines if "see: segstore trace show" in line)
    assert Path(shlex.split(see)[4]).is_file()
