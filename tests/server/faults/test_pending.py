"""How many pending requests are remembered."""

from segstore.server.faults.decisions import Plan
from segstore.server.faults.observe import request_seen
from segstore.server.faults.pending import PendingRequests, PlannedReply
from segstore.wire import SegmentRead
from tests.server.support import SEGMENT, read


def test_requests_that_are_never_answered_do_not_pile_up() -> None:
    seen = request_seen(read(0), 1, store=0, connection=1, now_s=0.0, started_s=0.0)
    pending, note = PendingRequests(), PlannedReply(seen, Plan())
    added = [pending.add(read(0, request_id=number), note) for number in range(20_000)]
    assert added.count(False) == 1
    assert len(pending) <= 16_384
    assert not pending.is_full, "reads wait at the tail"
    assert pending.answered_by(SegmentRead(SEGMENT, 0, False, False, b"", 19_999)) == [note]
