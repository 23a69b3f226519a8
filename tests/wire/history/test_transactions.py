from __future__ import annotations

from tests.wire.history.support import broken


def test_a_transaction_with_two_outcomes() -> None:
    commit, abort = (f'w {what} {{"transaction": "t", "segments": []}}\n' for what in ("commit", "abort"))
    assert broken(commit + abort) == {"two-outcomes": 1}
    assert broken(abort + commit) == {"two-outcomes": 1}
    assert not broken(commit + commit + abort.strip() + " → fail")
