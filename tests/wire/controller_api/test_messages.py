"""The API's files are in step with each other, and numbered as clients expect."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from segstore.wire.controller_api import METHODS, SERVICE, messages
from tests.looped import looped

ROOT = Path(__file__).parents[3]
PROTO = ROOT / "wire" / "controller_api"


@pytest.fixture(scope="module")
def make_proto() -> ModuleType:
    tool = ROOT / "tools" / "make_proto.py"
    if not tool.is_file():
        pytest.skip("tools/ is not here")
    spec = importlib.util.spec_from_file_location("make_proto", tool)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shipped() -> FileDescriptorSet:
    return FileDescriptorSet.FromString((PROTO / "controller.binpb").read_bytes())


@pytest.mark.long
def test_the_descriptors_say_what_the_proto_file_says(make_proto: ModuleType) -> None:
    assert make_proto.compile_descriptors() == shipped(), "controller.proto has changed: make proto"


def test_the_types_say_what_the_descriptors_say(make_proto: ModuleType) -> None:
    assert make_proto.stub(shipped().file[0]) == (PROTO / "messages.pyi").read_text(encoding="utf-8"), "make proto"


def test_the_service_has_its_name_on_the_wire_and_all_methods() -> None:
    assert SERVICE == "io.pravega.controller.stream.api.grpc.v1.ControllerService"
    assert METHODS["createScope"].path == f"/{SERVICE}/createScope"
    assert len(METHODS) == 47
    assert METHODS["getSegments"].request is messages.GetSegmentsRequest
    assert METHODS["getSegments"].response is messages.SegmentsAtTime


@looped(
    ("message", "hexadecimal"),
    [
        (messages.ScopeInfo(scope="a"), "0a0161"),
        (messages.CreateScopeStatus(status=messages.CreateScopeStatus.SCOPE_EXISTS), "0802"),
        (messages.StreamInfo(scope="a", stream="s", accessOperation=messages.StreamInfo.NONE), "0a01611201731801"),
        (messages.StreamCut(cut={1: 2}), "120408011002"),
        (messages.TxnId(highBits=-1, lowBits=1), "08ffffffffffffffffff011001"),
        (messages.ReaderGroupConfiguration(rolloverSizeBytes=1), "5801"),
        (messages.ListCompletedTxnResponse(response=[messages.TxnResponse(status=1)]), "12021001"),
        (messages.SegmentRange(maxKey=1.0), "19000000000000f03f"),
    ],
)
def test_messages_are_these_bytes_on_the_wire(message: object, hexadecimal: str) -> None:
    assert isinstance(message, messages.ScopeInfo.__base__ or object)
    serialized = message.SerializeToString(deterministic=True)  # type: ignore[attr-defined]
    assert serialized.hex() == hexadecimal


def test_a_message_that_is_not_of_the_api_is_refused_by_name() -> None:
    assert messages.ScopeInfo(scope="a").scope == "a"
    assert messages.ScopeInfo is messages.ScopeInfo
    with pytest.raises(AttributeError, match=r"controller_api\.messages' has no attribute 'ScopeInfos'"):
        _ = messages.ScopeInfos  # type: ignore[attr-defined]


def test_the_classes_and_the_methods_are_loaded_on_first_use() -> None:
    program = (
        "import sys, segstore.wire.controller_api as api; assert 'google.protobuf' not in sys.modules; "
        "assert 'createScope' in api.METHODS; assert 'google.protobuf' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
