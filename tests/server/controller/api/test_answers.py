"""What methods answer to requests that the recorded dialogues with a real controller lack."""

from typing import Any

import pytest

from segstore.wire.controller_api import messages as m
from tests.server.controller.calls import NO_STREAM, Client, S, group, stream_config

pytestmark = pytest.mark.usefixtures("grpc_runs")

ANSWERS: list[tuple[str, Any, str]] = [
    ("createScope", m.ScopeInfo(scope="_system"), "SUCCESS"),
    ("createStream", stream_config("t", 0), "FAILURE"),
    ("createStream", stream_config("t", rolloverSizeBytes=-1), "INTERNAL"),
    ("createStream", stream_config("t", tags=m.Tags(tag=["t" * 255])), "SUCCESS"),
    ("createStream", stream_config("u", tags=m.Tags(tag=["t" * 256])), "INTERNAL"),
    ("createStream", stream_config("u", tags=m.Tags(tag=map(str, range(127)))), "SUCCESS"),
    ("createStream", stream_config("v", tags=m.Tags(tag=map(str, range(128)))), "INTERNAL"),
    ("createStream", stream_config("v", retentionPolicy=m.RetentionPolicy(retentionType=9)), "INTERNAL"),
    ("updateStream", stream_config("s", 0), "FAILURE"),
    ("updateStream", stream_config("s", rolloverSizeBytes=-1), "INTERNAL"),
    ("checkTransactionState", m.TxnRequest(streamInfo=S, txnId=m.TxnId(highBits=-1, lowBits=-1)), "UNKNOWN"),
    ("listCompletedTransactions", m.ListCompletedTxnRequest(streamInfo=NO_STREAM), "OK"),
    ("listCompletedTransactions", m.ListCompletedTxnRequest(), "INTERNAL"),
    ("createReaderGroup", group("g", readerGroupId="x"), "INTERNAL"),
    ("createReaderGroup", group("g", retentionType=9), "INTERNAL"),
    ("createReaderGroup", group("g", maxOutstandingCheckpointRequest=0), "INTERNAL"),
    ("createReaderGroup", group("g", startingStreamCuts=[]), "INTERNAL"),
    ("createReaderGroup", group("g", startingStreamCuts=[m.StreamCut(streamInfo=S)] * 2), "INTERNAL"),
    ("createReaderGroup", group("g", startingStreamCuts=[m.StreamCut(streamInfo=S, cut={0: 5, 1: 5})],
                                endingStreamCuts=[m.StreamCut(streamInfo=S, cut={0: 4, 1: 5})]), "INTERNAL"),
    ("getDelegationToken", m.StreamInfo(), "OK"),
    ("getControllerToBucketMapping", m.ControllerToBucketMappingRequest(), "OK"),
    ("getControllerToBucketMapping", m.ControllerToBucketMappingRequest(serviceType=7), "INTERNAL"),
]  # fmt: skip


@pytest.mark.usefixtures("stream")
async def test_methods_answer_as_the_reference_does(call: Client) -> None:
    for name, request, expected in ANSWERS:
        assert await call.status(name, request) == expected, (name, request)
