"""A driver does not try for ever where stores are dead: commit and abort have times of their own, and say so."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from segstore.pipeline.stream.options import ABORT_TIMEOUT_MS, read_stream_options
from segstore.pipeline.stream.segments import DeadlinePassed, opened_for
from segstore.pipeline.stream.write import TaskResult
from segstore.testing import ServerThread
from tests.pipeline.stream_support import SCOPE, STREAM, every_event, make_stream, task, using

pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.fixture(params=["refuses", "never answers"])
def dead(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where no server is any more."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if request.param == "never answers":
            listening.listen()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


async def test_what_is_done_in_time_has_its_result_and_its_own_errors() -> None:
    given = read_stream_options({"controller": "tcp://127.0.0.1:1", "scope": SCOPE, "stream": STREAM})
    async with opened_for(given, "this", "abortTimeoutMs", 60_000) as segments:
        assert segments.stream == STREAM
    with pytest.raises(TimeoutError, match="of its own"):
        async with opened_for(given, "this", "abortTimeoutMs", 60_000):
            raise TimeoutError("of its own")


async def test_a_deadline_that_passes_says_what_was_done_and_where_and_which_option_gives_the_time(dead: str) -> None:
    given = read_stream_options({"controller": dead, "scope": SCOPE, "stream": STREAM})
    with pytest.raises(DeadlinePassed) as caught:
        async with opened_for(given, "a commit", "commitTimeoutMs", 50) as segments:
            await segments.current()
    assert (caught.value.option, caught.value.timeout_ms) == ("commitTimeoutMs", 50)
    assert str(caught.value).startswith("a commit did not end within the 50 ms of commitTimeoutMs: does tcp://")
    assert f"{SCOPE}/{STREAM}" in str(caught.value)


@pytest.mark.needs("Java 17 or newer")  # with it PySpark is installed
def test_the_sink_of_a_server_that_died_in_mid_batch_gives_up_and_says_which_option_gave_the_time() -> None:
    from pyspark.sql.types import BinaryType, StructType

    from segstore.pipeline.stream.sink import StreamStreamWriter, StreamWriter, Written

    async def before(uri: str) -> TaskResult:
        await make_stream(uri, 1)
        async with using(uri) as segments:
            return await task(segments, 0, 0, [b"never seen"])

    with ServerThread() as servers:
        server = servers.serve(stores=1, containers=2)
        uri = f"tcp://{server.controller_uri}"
        done = asyncio.run(before(uri))
        assert asyncio.run(every_event(uri, STREAM)) == []
    given = {"controller": uri, "scope": SCOPE, "stream": STREAM, "commitTimeoutMs": "50", "abortTimeoutMs": "50"}
    read, schema, said = read_stream_options(given), StructType().add("event", BinaryType()), [Written(done)]
    streaming, once = StreamStreamWriter(read, schema, False), StreamWriter(read, schema, False)
    for what, option in (
        (lambda: streaming.commit(said, 0), "commitTimeoutMs"),
        (lambda: streaming.abort(said, 0), "abortTimeoutMs"),
        (lambda: once.commit(said), "commitTimeoutMs"),
        (lambda: once.abort(said), "abortTimeoutMs"),
    ):
        with pytest.raises(DeadlinePassed) as caught:
            what()
        assert caught.value.option == option


def test_an_abort_without_an_answer_ends_within_seconds() -> None:
    given = read_stream_options({"controller": "tcp://127.0.0.1:1", "scope": SCOPE, "stream": STREAM})
    assert given.abort_timeout_ms == ABORT_TIMEOUT_MS <= 10_000 < given.commit_timeout_ms
    told = read_stream_options({
        "controller": "tcp://127.0.0.1:1", "scope": SCOPE, "stream": STREAM,
        "ABORTTIMEOUTMS": "7", "commitTimeoutMs": "9",
    })  # fmt: skip
    assert (told.abort_timeout_ms, told.commit_timeout_ms) == (7, 9)
