"""Fields of controller calls by path, ids that are paired, and answers with other ids and addresses."""

from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from segstore.wire.controller_api import METHODS
from segstore.wire.controller_api import messages as m
from segstore.wire.endpoint import Endpoint
from segstore.wire.names import transaction_name, transient_name
from segstore.wire.trace import Call, Pairing, fields_of, key_of_call, put_ids, take_ids, translated_call
from tests.looped import looped

STREAM = m.StreamInfo(scope="a", stream="s")
ID = "00000000000000010000000000000002"
WRITER = UUID("00112233-4455-6677-8899-aabbccddeeff")
STORE, HERE = Endpoint("store", 1), Endpoint("here", 2)


def call(rpc: str, message: Any, status: str = "") -> Call:
    return Call(1, rpc, message.SerializeToString(), status=status)


def values(found: Call) -> dict[str, Any]:
    return {path: each.value for path, each in fields_of(found).items()}


@looped(
    ("text", "rest", "ids"),
    [
        ("scope/stream/0", "scope/stream/0", 0),
        (str(WRITER), "*", 1),
        (str(WRITER).upper(), "*", 1),
        (transaction_name("s/t/0", WRITER), "s/t/0#transaction.*", 1),
        (transient_name("s/t/0", WRITER, WRITER.hex), "s/t/0#transient.*.*", 2),
        (f"reader {WRITER}!", "reader *!", 1),
        (WRITER.hex[:-1], WRITER.hex[:-1], 0),
    ],
)
def test_ids_are_taken_out_of_a_text(text: str, rest: str, ids: int) -> None:
    assert take_ids(text) == (rest, [WRITER.hex] * ids)


def test_a_key_stands_for_one_key_of_the_other_run_both_ways() -> None:
    pairing: Pairing[str] = Pairing()
    assert pairing.fits("a", "x")
    pairing.pair("a", "x")
    assert pairing.fits("a", "x")
    assert not pairing.fits("a", "y")
    assert not pairing.fits("b", "x")
    assert pairing.fits("b", "y")
    assert (pairing.right, pairing.left) == ({"a": "x"}, {"x": "a"})


def test_ids_in_a_text_are_replaced_in_their_form() -> None:
    one, other = "0123456789abcdef" * 2, "f" * 32
    dashed = str(UUID(one))
    text = f"a/{one}.{dashed.upper()}/{'0' * 32}"
    assert put_ids(text, {one: other}) == f"a/{other}.{UUID(other)}/{'0' * 32}"


def test_fields_are_named_by_their_paths_and_ids_are_texts() -> None:
    cut = m.StreamCut(streamInfo=STREAM, cut={5: 50, 1: 10})
    assert values(call("truncateStream", cut)) == {
        "streamInfo.scope": "a",
        "streamInfo.stream": "s",
        "cut[1]": 10,
        "cut[5]": 50,
    }
    made = m.CreateTxnResponse(txnId=m.TxnId(highBits=1, lowBits=2), activeSegments=[m.SegmentRange(maxKey=0.5)])
    assert values(call("createTransaction", made, "OK")) == {
        "txnId": "00000000-0000-0001-0000-000000000002",
        "activeSegments[0].maxKey": 0.5,
    }
    assert values(call("getURI", m.NodeUri(endpoint="::1", port=9), "OK")) == {"endpoint": "[::1]:9"}
    assert values(Call(1, "unknown", b"\x01")) == {"message": "01"}
    assert values(call("listScopes", m.ScopesResponse(scopes=["a", "b"]), "OK")) == {"scopes[0]": "a", "scopes[1]": "b"}


def test_keys_are_equal_but_for_ids_signs_of_times_and_tokens() -> None:
    def key(stamp: int, writer: str, token: str = "") -> Any:
        note = m.TimestampFromWriter(writer=writer, timestamp=stamp, position=m.StreamCut(streamInfo=STREAM))
        return key_of_call("noteTimestampFromWriter", fields_of(call("noteTimestampFromWriter", note)))

    (one, ids), (other, others) = key(5, f"w-{ID}"), key(7, f"w-{ID[::-1]}")
    assert one == other
    assert (ids, others) == ((ID,), (ID[::-1],))
    assert one != key(-5, f"w-{ID}")[0]
    assert one != key(5, "w-*")[0], "what stands for an id is no id"
    secret = m.SegmentRanges(delegationToken="secret")
    assert "secret" not in repr(key_of_call("getCurrentSegments", fields_of(call("getCurrentSegments", secret, "OK"))))
    nan = m.SegmentRange(maxKey=float("nan"))
    several = [key_of_call("x", fields_of(call("getCurrentSegments", each, "OK"))) for each in (nan, nan)]
    assert several[0] == several[1]


def test_an_answer_keeps_its_bytes_unless_something_is_replaced() -> None:
    answer = call("listSubscribers", m.SubscribersResponse(subscribers=["x", ID, f"y/{ID}"]), "OK")
    assert translated_call(answer, {}, STORE, HERE) is answer.message
    other = "f" * 32
    found = m.SubscribersResponse.FromString(translated_call(answer, {ID: other}, STORE, HERE))
    assert list(found.subscribers) == ["x", other, f"y/{other}"]
    unknown = Call(1, "newMethod", b"\x01", status="OK")
    assert translated_call(unknown, {ID: other}, STORE, HERE) == b"\x01"


def test_a_request_is_translated_with_its_transaction() -> None:
    first, second = "8" + "0" * 30 + "1", "f" * 31 + "e"  # ids whose halves are negative numbers
    message = m.TxnRequest(streamInfo=STREAM, txnId=m.TxnId(highBits=-(1 << 63), lowBits=1))
    found = m.TxnRequest.FromString(translated_call(call("commitTransaction", message), {first: second}, STORE, HERE))
    assert found.txnId == m.TxnId(highBits=-1, lowBits=-2)
    assert translated_call(call("getControllerServerList", m.ServerRequest()), {}, STORE, HERE) == b""


@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=80), st.sampled_from(["", "OK"]))
def test_any_message_has_fields_and_translates(rpc: str, message: bytes, status: str) -> None:
    given = Call(1, rpc, message, status=status)
    fields = fields_of(given)
    key, ids = key_of_call(rpc, fields)
    assert (key, ids) == key_of_call(rpc, fields_of(given))
    again = Call(1, rpc, translated_call(given, {}, STORE, HERE), status=status)
    kept = {path: each for path, each in fields.items() if not each.secret and "endpoint" not in path}
    assert {path: each for path, each in fields_of(again).items() if path in kept} == kept or rpc in (
        "getURI",
        "getControllerServerList",
    )
