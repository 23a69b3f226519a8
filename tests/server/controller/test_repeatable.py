"""Which methods a client may repeat if it is unknown whether the first call was applied."""

from typing import Any

import pytest

from segstore.server.controller import ControllerServer
from segstore.wire.controller_api import METHODS
from segstore.wire.controller_api import messages as m
from tests.server.controller.calls import LEASE_MS, Client, S, group, stream_config
from tests.server.controller.conftest import World

pytestmark = pytest.mark.usefixtures("grpc_runs")

READING = ("get", "list", "check", "is")
SCOPE = m.ScopeInfo(scope="a")
EMPTY = m.ScopeInfo(scope="empty")
TABLE = m.KeyValueTableInfo(scope="a", kvtName="k")
SPLIT = m.ScaleRequest(
    streamInfo=S,
    sealedSegments=[0],
    newKeyRanges=[m.ScaleRequest.KeyRangeEntry(start=low, end=low + 0.25) for low in (0.0, 0.25)],
    scaleTimestamp=1,
)


async def changes(call: Client) -> dict[str, Any]:
    """A request that succeeds, for each method that changes something."""
    for each in (SCOPE, EMPTY, m.ScopeInfo(scope="full")):
        await call("createScope", each)
    await call("createStream", stream_config("s", 2))
    await call("createStream", stream_config("over"))
    await call("sealStream", m.StreamInfo(scope="a", stream="over"))
    await call("createKeyValueTable", _table("k"))
    cut = m.StreamCut(streamInfo=S, cut={0: 0, 1: 0})
    subscriber = {"startingStreamCuts": [cut], "retentionType": m.ReaderGroupConfiguration.MANUAL}
    made = (await call("createReaderGroup", group("g", **subscriber))).config
    other = (await call("createReaderGroup", group("h"))).config
    ids = [(await call("createTransaction", m.CreateTxnRequest(streamInfo=S, lease=LEASE_MS))).txnId for _ in range(3)]
    opened = [m.TxnRequest(streamInfo=S, txnId=each) for each in ids]
    await call("noteTimestampFromWriter", _time("w", 5))
    return {
        "createScope": m.ScopeInfo(scope="new"),
        "deleteScope": EMPTY,
        "deleteScopeRecursive": m.ScopeInfo(scope="full"),
        "createStream": stream_config("new"),
        "updateStream": stream_config("s", 2, rolloverSizeBytes=7),
        "truncateStream": cut,
        "sealStream": m.StreamInfo(scope="a", stream="s"),
        "deleteStream": m.StreamInfo(scope="a", stream="over"),
        "scale": SPLIT,
        "createTransaction": m.CreateTxnRequest(streamInfo=S, lease=LEASE_MS),
        "pingTransaction": m.PingTxnRequest(streamInfo=S, txnId=ids[0], lease=LEASE_MS),
        "commitTransaction": opened[1],
        "abortTransaction": opened[2],
        "noteTimestampFromWriter": _time("v", 9),
        "removeWriter": m.RemoveWriterRequest(writer="w", stream=S),
        "createReaderGroup": group("new"),
        "updateReaderGroup": other,
        "deleteReaderGroup": m.ReaderGroupInfo(
            scope="a", readerGroup="h", readerGroupId=other.readerGroupId, generation=other.generation
        ),
        "updateSubscriberStreamCut": m.SubscriberStreamCut(
            subscriber="a/g", generation=made.generation, readerGroupId=made.readerGroupId, streamCut=cut
        ),
        "createKeyValueTable": _table("new"),
        "deleteKeyValueTable": TABLE,
    }


def _table(name: str) -> m.KeyValueTableConfig:
    return m.KeyValueTableConfig(scope="a", kvtName=name, partitionCount=1, primaryKeyLength=3)


def _time(writer: str, timestamp: int) -> m.TimestampFromWriter:
    cut = m.StreamCut(streamInfo=S, cut={0: 0, 1: 0})
    return m.TimestampFromWriter(writer=writer, timestamp=timestamp, position=cut)


CHANGING = sorted(name for name in METHODS if not name.startswith(READING))


@pytest.mark.parametrize("method", CHANGING)
async def test_a_repeated_change_succeeds_exactly_if_its_method_is_repeatable(
    world: World, server: ControllerServer, call: Client, method: str
) -> None:
    request = (await changes(call))[method]
    first = await call.status(method, request)
    assert first in ("SUCCESS", "STARTED", "OK"), first
    granted_again = await call.status(method, request) == first
    # Deleting a scope recursively succeeds even if there is none, so a repeated call could delete a later one.
    assert granted_again is (METHODS[method].repeatable or method == "deleteScopeRecursive")


def test_all_that_reads_is_repeatable() -> None:
    assert all(METHODS[method].repeatable for method in METHODS.keys() - set(CHANGING))
