"""Types of the classes in messages.py. Built by `make proto` from controller.proto, not edited."""
# ruff: noqa: A002, E501, N802, N803, N815 (names and lengths are protobuf's)

from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence
from typing import Final

from google.protobuf.message import Message

__all__ = ["BucketIds", "ContinuationToken", "ControllerToBucketMappingRequest", "ControllerToBucketMappingResponse", "CreateKeyValueTableStatus", "CreateReaderGroupResponse", "CreateScopeStatus", "CreateStreamStatus", "CreateTxnRequest", "CreateTxnResponse", "DelegationToken", "DeleteKVTableStatus", "DeleteReaderGroupStatus", "DeleteScopeStatus", "DeleteStreamStatus", "ExistsResponse", "GetEpochSegmentsRequest", "GetSegmentsRequest", "KVTablesInScopeRequest", "KVTablesInScopeResponse", "KeyValueTableConfig", "KeyValueTableConfigResponse", "KeyValueTableInfo", "ListCompletedTxnRequest", "ListCompletedTxnResponse", "NodeUri", "PingTxnRequest", "PingTxnStatus", "ReaderGroupConfigResponse", "ReaderGroupConfiguration", "ReaderGroupInfo", "RemoveWriterRequest", "RemoveWriterResponse", "RetentionPolicy", "ScaleRequest", "ScaleResponse", "ScaleStatusRequest", "ScaleStatusResponse", "ScalingPolicy", "ScopeInfo", "ScopesRequest", "ScopesResponse", "SegmentId", "SegmentRange", "SegmentRanges", "SegmentValidityResponse", "SegmentsAtTime", "ServerRequest", "ServerResponse", "StreamConfig", "StreamCut", "StreamCutRange", "StreamCutRangeResponse", "StreamCutValidityResponse", "StreamInfo", "StreamsInScopeRequest", "StreamsInScopeResponse", "StreamsInScopeWithTagRequest", "SubscriberStreamCut", "SubscribersResponse", "SuccessorResponse", "Tags", "TimestampFromWriter", "TimestampResponse", "TxnId", "TxnRequest", "TxnResponse", "TxnState", "TxnStatus", "UpdateReaderGroupResponse", "UpdateStreamStatus", "UpdateSubscriberStatus"]

class ScopeInfo(Message):
    scope: str
    def __init__(self, *, scope: str | None = ...) -> None: ...

class StreamInfo(Message):
    class AccessOperation:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    UNSPECIFIED: Final = 0
    NONE: Final = 1
    ANY: Final = 2
    READ: Final = 3
    WRITE: Final = 4
    READ_WRITE: Final = 5
    scope: str
    stream: str
    accessOperation: int
    def __init__(self, *, scope: str | None = ..., stream: str | None = ..., accessOperation: int | None = ...) -> None: ...

class SegmentId(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    segmentId: int
    def __init__(self, *, streamInfo: StreamInfo | None = ..., segmentId: int | None = ...) -> None: ...

class SegmentRange(Message):
    @property
    def segmentId(self) -> SegmentId: ...
    minKey: float
    maxKey: float
    def __init__(self, *, segmentId: SegmentId | None = ..., minKey: float | None = ..., maxKey: float | None = ...) -> None: ...

class SegmentRanges(Message):
    @property
    def segmentRanges(self) -> MutableSequence[SegmentRange]: ...
    delegationToken: str
    def __init__(self, *, segmentRanges: Iterable[SegmentRange] | None = ..., delegationToken: str | None = ...) -> None: ...

class StreamCut(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    @property
    def cut(self) -> MutableMapping[int, int]: ...
    def __init__(self, *, streamInfo: StreamInfo | None = ..., cut: Mapping[int, int] | None = ...) -> None: ...

class TxnId(Message):
    highBits: int
    lowBits: int
    def __init__(self, *, highBits: int | None = ..., lowBits: int | None = ...) -> None: ...

class NodeUri(Message):
    endpoint: str
    port: int
    def __init__(self, *, endpoint: str | None = ..., port: int | None = ...) -> None: ...

class ContinuationToken(Message):
    token: str
    def __init__(self, *, token: str | None = ...) -> None: ...

class ExistsResponse(Message):
    exists: bool
    def __init__(self, *, exists: bool | None = ...) -> None: ...

class ServerRequest(Message):
    def __init__(self) -> None: ...

class ServerResponse(Message):
    @property
    def nodeURI(self) -> MutableSequence[NodeUri]: ...
    def __init__(self, *, nodeURI: Iterable[NodeUri] | None = ...) -> None: ...

class DelegationToken(Message):
    delegationToken: str
    def __init__(self, *, delegationToken: str | None = ...) -> None: ...

class ControllerToBucketMappingRequest(Message):
    class BucketType:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    RetentionService: Final = 0
    WatermarkingService: Final = 1
    serviceType: int
    def __init__(self, *, serviceType: int | None = ...) -> None: ...

class ControllerToBucketMappingResponse(Message):
    @property
    def mapping(self) -> MutableMapping[str, BucketIds]: ...
    def __init__(self, *, mapping: Mapping[str, BucketIds] | None = ...) -> None: ...

class BucketIds(Message):
    @property
    def id(self) -> MutableSequence[int]: ...
    def __init__(self, *, id: Iterable[int] | None = ...) -> None: ...

class CreateScopeStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    SCOPE_EXISTS: Final = 2
    INVALID_SCOPE_NAME: Final = 3
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class DeleteScopeStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    SCOPE_NOT_FOUND: Final = 2
    SCOPE_NOT_EMPTY: Final = 3
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class ScopesRequest(Message):
    @property
    def continuationToken(self) -> ContinuationToken: ...
    def __init__(self, *, continuationToken: ContinuationToken | None = ...) -> None: ...

class ScopesResponse(Message):
    @property
    def scopes(self) -> MutableSequence[str]: ...
    @property
    def continuationToken(self) -> ContinuationToken: ...
    def __init__(self, *, scopes: Iterable[str] | None = ..., continuationToken: ContinuationToken | None = ...) -> None: ...

class ScalingPolicy(Message):
    class ScalingPolicyType:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    FIXED_NUM_SEGMENTS: Final = 0
    BY_RATE_IN_KBYTES_PER_SEC: Final = 1
    BY_RATE_IN_EVENTS_PER_SEC: Final = 2
    scaleType: int
    targetRate: int
    scaleFactor: int
    minNumSegments: int
    def __init__(self, *, scaleType: int | None = ..., targetRate: int | None = ..., scaleFactor: int | None = ..., minNumSegments: int | None = ...) -> None: ...

class RetentionPolicy(Message):
    class RetentionPolicyType:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    UNKNOWN: Final = 0
    TIME: Final = 1
    SIZE: Final = 2
    retentionType: int
    retentionParam: int
    retentionMax: int
    def __init__(self, *, retentionType: int | None = ..., retentionParam: int | None = ..., retentionMax: int | None = ...) -> None: ...

class Tags(Message):
    @property
    def tag(self) -> MutableSequence[str]: ...
    def __init__(self, *, tag: Iterable[str] | None = ...) -> None: ...

class StreamConfig(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    @property
    def scalingPolicy(self) -> ScalingPolicy: ...
    @property
    def retentionPolicy(self) -> RetentionPolicy: ...
    @property
    def tags(self) -> Tags: ...
    timestampAggregationTimeout: int
    rolloverSizeBytes: int
    def __init__(self, *, streamInfo: StreamInfo | None = ..., scalingPolicy: ScalingPolicy | None = ..., retentionPolicy: RetentionPolicy | None = ..., tags: Tags | None = ..., timestampAggregationTimeout: int | None = ..., rolloverSizeBytes: int | None = ...) -> None: ...

class CreateStreamStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    STREAM_EXISTS: Final = 2
    SCOPE_NOT_FOUND: Final = 3
    INVALID_STREAM_NAME: Final = 4
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class UpdateStreamStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    STREAM_NOT_FOUND: Final = 2
    SCOPE_NOT_FOUND: Final = 3
    STREAM_SEALED: Final = 4
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class DeleteStreamStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    STREAM_NOT_FOUND: Final = 2
    STREAM_NOT_SEALED: Final = 3
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class StreamsInScopeRequest(Message):
    @property
    def scope(self) -> ScopeInfo: ...
    @property
    def continuationToken(self) -> ContinuationToken: ...
    def __init__(self, *, scope: ScopeInfo | None = ..., continuationToken: ContinuationToken | None = ...) -> None: ...

class StreamsInScopeWithTagRequest(Message):
    @property
    def scope(self) -> ScopeInfo: ...
    tag: str
    @property
    def continuationToken(self) -> ContinuationToken: ...
    def __init__(self, *, scope: ScopeInfo | None = ..., tag: str | None = ..., continuationToken: ContinuationToken | None = ...) -> None: ...

class StreamsInScopeResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    SCOPE_NOT_FOUND: Final = 2
    @property
    def streams(self) -> MutableSequence[StreamInfo]: ...
    @property
    def continuationToken(self) -> ContinuationToken: ...
    status: int
    def __init__(self, *, streams: Iterable[StreamInfo] | None = ..., continuationToken: ContinuationToken | None = ..., status: int | None = ...) -> None: ...

class GetEpochSegmentsRequest(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    epoch: int
    def __init__(self, *, streamInfo: StreamInfo | None = ..., epoch: int | None = ...) -> None: ...

class GetSegmentsRequest(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    timestamp: int
    def __init__(self, *, streamInfo: StreamInfo | None = ..., timestamp: int | None = ...) -> None: ...

class SegmentsAtTime(Message):
    class SegmentLocation(Message):
        @property
        def segmentId(self) -> SegmentId: ...
        offset: int
        def __init__(self, *, segmentId: SegmentId | None = ..., offset: int | None = ...) -> None: ...
    @property
    def segments(self) -> MutableSequence[SegmentsAtTime.SegmentLocation]: ...
    delegationToken: str
    def __init__(self, *, segments: Iterable[SegmentsAtTime.SegmentLocation] | None = ..., delegationToken: str | None = ...) -> None: ...

class SuccessorResponse(Message):
    class SegmentEntry(Message):
        @property
        def segment(self) -> SegmentRange: ...
        @property
        def value(self) -> MutableSequence[int]: ...
        def __init__(self, *, segment: SegmentRange | None = ..., value: Iterable[int] | None = ...) -> None: ...
    @property
    def segments(self) -> MutableSequence[SuccessorResponse.SegmentEntry]: ...
    delegationToken: str
    def __init__(self, *, segments: Iterable[SuccessorResponse.SegmentEntry] | None = ..., delegationToken: str | None = ...) -> None: ...

class StreamCutRange(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    @property
    def to(self) -> MutableMapping[int, int]: ...
    def __init__(self, *, streamInfo: StreamInfo | None = ..., to: Mapping[int, int] | None = ..., **more: object) -> None: ...

class StreamCutRangeResponse(Message):
    @property
    def segments(self) -> MutableSequence[SegmentId]: ...
    delegationToken: str
    def __init__(self, *, segments: Iterable[SegmentId] | None = ..., delegationToken: str | None = ...) -> None: ...

class SegmentValidityResponse(Message):
    response: bool
    def __init__(self, *, response: bool | None = ...) -> None: ...

class StreamCutValidityResponse(Message):
    response: bool
    def __init__(self, *, response: bool | None = ...) -> None: ...

class ScaleRequest(Message):
    class KeyRangeEntry(Message):
        start: float
        end: float
        def __init__(self, *, start: float | None = ..., end: float | None = ...) -> None: ...
    @property
    def streamInfo(self) -> StreamInfo: ...
    @property
    def sealedSegments(self) -> MutableSequence[int]: ...
    @property
    def newKeyRanges(self) -> MutableSequence[ScaleRequest.KeyRangeEntry]: ...
    scaleTimestamp: int
    def __init__(self, *, streamInfo: StreamInfo | None = ..., sealedSegments: Iterable[int] | None = ..., newKeyRanges: Iterable[ScaleRequest.KeyRangeEntry] | None = ..., scaleTimestamp: int | None = ...) -> None: ...

class ScaleResponse(Message):
    class ScaleStreamStatus:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    STARTED: Final = 0
    FAILURE: Final = 1
    PRECONDITION_FAILED: Final = 2
    status: int
    @property
    def segments(self) -> MutableSequence[SegmentRange]: ...
    epoch: int
    def __init__(self, *, status: int | None = ..., segments: Iterable[SegmentRange] | None = ..., epoch: int | None = ...) -> None: ...

class ScaleStatusRequest(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    epoch: int
    def __init__(self, *, streamInfo: StreamInfo | None = ..., epoch: int | None = ...) -> None: ...

class ScaleStatusResponse(Message):
    class ScaleStatus:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    IN_PROGRESS: Final = 0
    SUCCESS: Final = 1
    INVALID_INPUT: Final = 2
    INTERNAL_ERROR: Final = 3
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class CreateTxnRequest(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    lease: int
    scaleGracePeriod: int
    def __init__(self, *, streamInfo: StreamInfo | None = ..., lease: int | None = ..., scaleGracePeriod: int | None = ...) -> None: ...

class CreateTxnResponse(Message):
    @property
    def txnId(self) -> TxnId: ...
    @property
    def activeSegments(self) -> MutableSequence[SegmentRange]: ...
    delegationToken: str
    def __init__(self, *, txnId: TxnId | None = ..., activeSegments: Iterable[SegmentRange] | None = ..., delegationToken: str | None = ...) -> None: ...

class TxnRequest(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    @property
    def txnId(self) -> TxnId: ...
    writerId: str
    timestamp: int
    def __init__(self, *, streamInfo: StreamInfo | None = ..., txnId: TxnId | None = ..., writerId: str | None = ..., timestamp: int | None = ...) -> None: ...

class TxnStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    STREAM_NOT_FOUND: Final = 2
    TRANSACTION_NOT_FOUND: Final = 3
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class PingTxnRequest(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    @property
    def txnId(self) -> TxnId: ...
    lease: int
    def __init__(self, *, streamInfo: StreamInfo | None = ..., txnId: TxnId | None = ..., lease: int | None = ...) -> None: ...

class PingTxnStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    OK: Final = 0
    LEASE_TOO_LARGE: Final = 1
    MAX_EXECUTION_TIME_EXCEEDED: Final = 2
    SCALE_GRACE_TIME_EXCEEDED: Final = 3
    DISCONNECTED: Final = 4
    COMMITTED: Final = 5
    ABORTED: Final = 6
    UNKNOWN: Final = 7
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class TxnState(Message):
    class State:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    UNKNOWN: Final = 0
    OPEN: Final = 1
    COMMITTING: Final = 2
    COMMITTED: Final = 3
    ABORTING: Final = 4
    ABORTED: Final = 5
    state: int
    def __init__(self, *, state: int | None = ...) -> None: ...

class ListCompletedTxnRequest(Message):
    @property
    def streamInfo(self) -> StreamInfo: ...
    def __init__(self, *, streamInfo: StreamInfo | None = ...) -> None: ...

class TxnResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    COMMITTED: Final = 0
    ABORTED: Final = 1
    @property
    def txnId(self) -> TxnId: ...
    status: int
    def __init__(self, *, txnId: TxnId | None = ..., status: int | None = ...) -> None: ...

class ListCompletedTxnResponse(Message):
    @property
    def response(self) -> MutableSequence[TxnResponse]: ...
    def __init__(self, *, response: Iterable[TxnResponse] | None = ...) -> None: ...

class TimestampFromWriter(Message):
    writer: str
    @property
    def position(self) -> StreamCut: ...
    timestamp: int
    def __init__(self, *, writer: str | None = ..., position: StreamCut | None = ..., timestamp: int | None = ...) -> None: ...

class TimestampResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    INVALID_TIME: Final = 1
    INVALID_POSITION: Final = 2
    INTERNAL_ERROR: Final = 3
    result: int
    def __init__(self, *, result: int | None = ...) -> None: ...

class RemoveWriterRequest(Message):
    writer: str
    @property
    def stream(self) -> StreamInfo: ...
    def __init__(self, *, writer: str | None = ..., stream: StreamInfo | None = ...) -> None: ...

class RemoveWriterResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    UNKNOWN_WRITER: Final = 1
    STREAM_DOES_NOT_EXIST: Final = 2
    INTERNAL_ERROR: Final = 3
    result: int
    def __init__(self, *, result: int | None = ...) -> None: ...

class ReaderGroupConfiguration(Message):
    class RetentionType:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    NONE: Final = 0
    MANUAL: Final = 1
    AUTOMATIC: Final = 2
    scope: str
    readerGroupName: str
    groupRefreshTimeMillis: int
    automaticCheckpointIntervalMillis: int
    maxOutstandingCheckpointRequest: int
    retentionType: int
    generation: int
    readerGroupId: str
    @property
    def startingStreamCuts(self) -> MutableSequence[StreamCut]: ...
    @property
    def endingStreamCuts(self) -> MutableSequence[StreamCut]: ...
    rolloverSizeBytes: int
    def __init__(self, *, scope: str | None = ..., readerGroupName: str | None = ..., groupRefreshTimeMillis: int | None = ..., automaticCheckpointIntervalMillis: int | None = ..., maxOutstandingCheckpointRequest: int | None = ..., retentionType: int | None = ..., generation: int | None = ..., readerGroupId: str | None = ..., startingStreamCuts: Iterable[StreamCut] | None = ..., endingStreamCuts: Iterable[StreamCut] | None = ..., rolloverSizeBytes: int | None = ...) -> None: ...

class ReaderGroupInfo(Message):
    scope: str
    readerGroup: str
    readerGroupId: str
    generation: int
    def __init__(self, *, scope: str | None = ..., readerGroup: str | None = ..., readerGroupId: str | None = ..., generation: int | None = ...) -> None: ...

class CreateReaderGroupResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    SCOPE_NOT_FOUND: Final = 2
    INVALID_RG_NAME: Final = 3
    status: int
    @property
    def config(self) -> ReaderGroupConfiguration: ...
    def __init__(self, *, status: int | None = ..., config: ReaderGroupConfiguration | None = ...) -> None: ...

class ReaderGroupConfigResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    RG_NOT_FOUND: Final = 2
    @property
    def config(self) -> ReaderGroupConfiguration: ...
    status: int
    def __init__(self, *, config: ReaderGroupConfiguration | None = ..., status: int | None = ...) -> None: ...

class UpdateReaderGroupResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    RG_NOT_FOUND: Final = 2
    INVALID_CONFIG: Final = 3
    status: int
    generation: int
    def __init__(self, *, status: int | None = ..., generation: int | None = ...) -> None: ...

class DeleteReaderGroupStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    RG_NOT_FOUND: Final = 2
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class SubscribersResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    STREAM_NOT_FOUND: Final = 2
    @property
    def subscribers(self) -> MutableSequence[str]: ...
    status: int
    def __init__(self, *, subscribers: Iterable[str] | None = ..., status: int | None = ...) -> None: ...

class SubscriberStreamCut(Message):
    subscriber: str
    generation: int
    readerGroupId: str
    @property
    def streamCut(self) -> StreamCut: ...
    def __init__(self, *, subscriber: str | None = ..., generation: int | None = ..., readerGroupId: str | None = ..., streamCut: StreamCut | None = ...) -> None: ...

class UpdateSubscriberStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    STREAM_NOT_FOUND: Final = 2
    SUBSCRIBER_NOT_FOUND: Final = 3
    STREAM_CUT_NOT_VALID: Final = 4
    GENERATION_MISMATCH: Final = 5
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class KeyValueTableInfo(Message):
    scope: str
    kvtName: str
    def __init__(self, *, scope: str | None = ..., kvtName: str | None = ...) -> None: ...

class KeyValueTableConfig(Message):
    scope: str
    kvtName: str
    partitionCount: int
    primaryKeyLength: int
    secondaryKeyLength: int
    rolloverSizeBytes: int
    def __init__(self, *, scope: str | None = ..., kvtName: str | None = ..., partitionCount: int | None = ..., primaryKeyLength: int | None = ..., secondaryKeyLength: int | None = ..., rolloverSizeBytes: int | None = ...) -> None: ...

class CreateKeyValueTableStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    TABLE_EXISTS: Final = 2
    SCOPE_NOT_FOUND: Final = 3
    INVALID_TABLE_NAME: Final = 4
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class KeyValueTableConfigResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    TABLE_NOT_FOUND: Final = 2
    @property
    def config(self) -> KeyValueTableConfig: ...
    status: int
    def __init__(self, *, config: KeyValueTableConfig | None = ..., status: int | None = ...) -> None: ...

class KVTablesInScopeRequest(Message):
    @property
    def scope(self) -> ScopeInfo: ...
    @property
    def continuationToken(self) -> ContinuationToken: ...
    def __init__(self, *, scope: ScopeInfo | None = ..., continuationToken: ContinuationToken | None = ...) -> None: ...

class KVTablesInScopeResponse(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    SCOPE_NOT_FOUND: Final = 2
    @property
    def kvtables(self) -> MutableSequence[KeyValueTableInfo]: ...
    @property
    def continuationToken(self) -> ContinuationToken: ...
    status: int
    def __init__(self, *, kvtables: Iterable[KeyValueTableInfo] | None = ..., continuationToken: ContinuationToken | None = ..., status: int | None = ...) -> None: ...

class DeleteKVTableStatus(Message):
    class Status:
        @staticmethod
        def Name(number: int) -> str: ...
        @staticmethod
        def Value(name: str) -> int: ...
    SUCCESS: Final = 0
    FAILURE: Final = 1
    TABLE_NOT_FOUND: Final = 2
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...
