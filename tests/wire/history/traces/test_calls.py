from __future__ import annotations

from typing import Any

from segstore.wire.history import Key
from segstore.wire.history.facts import Transaction
from tests.wire.history.traces.support import facts_of_calls

STREAM = {"scope": "s", "stream": "t"}
ID = {"highBits": "1", "lowBits": "-1"}
NAME = "0000000000000001ffffffffffffffff"
TXN: dict[str, Any] = {"streamInfo": STREAM, "txnId": ID}
BEGUN = (
    "createTransaction",
    {"streamInfo": STREAM, "lease": 1000},
    {"txnId": ID, "activeSegments": [{"segmentId": {"streamInfo": STREAM, "segmentId": str(1 << 32)}}]},
)
SEGMENT = Key("segment", "s/t/0.#epoch.1")


def steps(*calls: Any) -> list[str]:
    facts = facts_of_calls(BEGUN, *calls)
    of_segment = [fact.value.what for fact in facts if fact.key == SEGMENT]
    of_transaction = [fact.value.what for fact in facts if fact.key == Key("transaction", NAME)]
    assert [what for what in of_segment if what != "committing"] == [w for w in of_transaction if w != "committing"]
    assert all(isinstance(fact.value, Transaction) for fact in facts)
    return of_segment


def test_the_steps_of_a_transaction_concern_its_segments() -> None:
    commit, abort = ("commitTransaction", TXN), ("abortTransaction", TXN)
    state = ("checkTransactionState", TXN)
    assert steps((*commit, {"status": "SUCCESS"})) == ["begun", "committing", "committing"]
    assert steps((*commit, None)) == ["begun", "committing", "unknown"]
    assert steps((*commit, {"status": "FAILURE"})) == ["begun", "committing", "unknown"]
    assert steps((*abort, {"status": "SUCCESS"}), (*state, {"state": "ABORTED"})) == ["begun", "aborting", "aborted"]
    assert steps((*abort, {"status": "TRANSACTION_NOT_FOUND"})) == ["begun"]
    assert steps((*state, {"state": "OPEN"})) == ["begun"]


def test_a_commit_is_an_outcome_once_the_controller_has_accepted_it() -> None:
    for answer, committing in (({"status": "SUCCESS"}, 1), ({"status": "FAILURE"}, 0), (None, 0)):
        facts = facts_of_calls(BEGUN, ("commitTransaction", TXN, answer))
        assert sum(fact.value.what == "committing" for fact in facts if fact.key.kind == "transaction") == committing
