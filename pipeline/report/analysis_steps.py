"""The SQL statements of the trace analysis on Spark: they pair requests with replies and appends with acknowledgements,
then select exchanges and violations.

A reply answers the oldest pending request with its request id on its connection: a queue. SQL models a queue as a walk:
+1 for a request, -1 for a reply. If the walk falls below 0 and all earlier points, the queue was empty, and the reply
is an orphan. The n-th request pairs with the n-th non-orphan reply. So pairing takes only sorting and running sums,
whatever the ids and however often they are reused, and no self-join.

An ack covers all events of its writer up to its number, since the writer's last set-up. Acks that raise the number rise
in both number and time; sorted by number, the ack that covers an append is the next one at or above it.

Invariant: `ORDERED`, `PAIRED`, `REFUSED` and `WRITTEN` add columns and neither add nor drop rows; `PLACED` drops only
what was skipped. Rows that do not take part in a step get groups of their own (`_queue`, `_seat`), so that they do not
collect in one task. Window frames only look back, because Spark takes quadratic time for frames that look ahead (`lead`
has no frame). Windows over the same rows in the same order share one sort, which is the main cost. Therefore a column
that rises with time, a life or an epoch, is not in PARTITION BY: values are kept with the life in which they were
found, and count if that is the row's own. The first column of a window distinguishes most rows, because Spark compares
eight bytes of the first column before anything else. Statements that read the persisted `written` avoid WITH, in which
Spark (4.3.0) does not detect persisted tables. `PAIRED` is plain SQL that also runs on DuckDB.
"""

from __future__ import annotations

from typing import Final

from segstore.pipeline.report.analysis_checks import BROKEN, MISFIT, OWN, names
from segstore.pipeline.report.analysis_rules import (
    APPENDING,
    APPENDS,
    FRAME_COLUMNS,
    KEYS,
    REPLIES,
    REQUESTS,
    Rule,
    Status,
)

_LIFE: Final = "file, connection, life"
_BEFORE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_UP_TO: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"

_RECORDED: Final = "PARTITION BY connection, file ORDER BY block, record"

PLACED: Final = f"""
SELECT {", ".join(FRAME_COLUMNS)},
  CAST(greatest(1, count(CASE WHEN kind = 'open' THEN 1 END) OVER ({_RECORDED} {_UP_TO})) AS INT) AS life
FROM {{rows}} WHERE kind <> 'skipped'
"""
"""All records with the life of their connection: recorders never reuse connection numbers, but other tools may."""

_LOOKED: Final = f"""
SELECT *,
  kind <> 'open' AND count(CASE WHEN kind = 'open' THEN 1 END) OVER before > 0 AS _opened,
  max(CASE WHEN kind = 'close' THEN life END) OVER before <=> life AS _closed,
  lead(CASE WHEN kind = 'close' THEN life END) IGNORE NULLS OVER ({_RECORDED}) <=> life AS _closes,
  CASE direction
    WHEN 'request' THEN max(CASE WHEN kind = 'frame' AND direction = 'request' THEN life END) OVER before <=> life
    ELSE max(CASE WHEN kind = 'frame' AND direction = 'reply' THEN life END) OVER before <=> life END AS _followed,
  last_value(CASE WHEN error IS NULL AND direction = 'request' AND command IN ({names(APPENDING)})
    THEN struct(life, command, writer_id, data_bytes, block, record) END) IGNORE NULLS OVER before AS _last
FROM {{frames}}
WINDOW before AS ({_RECORDED} {_BEFORE})
"""

ORDERED: Final = f"""
SELECT * EXCEPT (_last, _closes), kind = 'close' OR _closed OR _closes AS _ends,
  CASE WHEN _last.life = life AND _last.command = 'APPEND_BLOCK'
    THEN struct(_last.data_bytes, _last.block, _last.record, _last.writer_id = writer_id AS own) END AS _started
FROM ({_LOOKED}) AS looked
"""
"""Adds what came before in the same life of the connection: lives rise with time, so the last value belongs to this
life if its own life is equal. `_followed`: whether a frame preceded in this direction. `_started`: the open append
block, and whether it is this writer's. `_ends`: whether the trace has the connection's end."""

_QUEUE: Final = "request_id, _queue, connection, life, file"

_KEYED: Final = f"""
SELECT *, CASE
  WHEN _step = 0 THEN 3 + record {" ".join(f"WHEN command = '{name}' THEN {key}" for name, key in KEYS.items())}
  ELSE 0 END AS _queue
FROM (SELECT *, CASE
    WHEN error IS NULL AND direction = 'request' AND command IN ({names(REQUESTS)}) THEN 1
    WHEN error IS NULL AND direction = 'reply' AND command IN ({names(REPLIES)}) THEN -1
    ELSE 0 END AS _step
  FROM {{frames}}) AS stepping
"""


def _paired(keyed: str) -> str:
    return f"""
WITH walked AS (
  SELECT *, row_number() OVER so_far AS _n, sum(_step) OVER so_far AS _balance
  FROM ({keyed}) AS keyed WINDOW so_far AS (PARTITION BY {_QUEUE} ORDER BY block, record {_UP_TO})
), floored AS (
  SELECT *,
    least(0, min(_balance) OVER (PARTITION BY {_QUEUE} ORDER BY block, record {_UP_TO})) AS _floor,
    least(0, coalesce(min(_balance) OVER (PARTITION BY {_QUEUE} ORDER BY block, record {_BEFORE}), 0)) AS _floor_before
  FROM walked
), ranked AS (
  SELECT *, _step = -1 AND _floor < _floor_before AS _orphan, CASE
      WHEN _step = 1 THEN _n + _balance
      WHEN _floor < _floor_before THEN -_n
      ELSE _n - _balance + 2 * _floor END AS _rank
  FROM floored
)
SELECT *,
  lead(block) OVER pair AS _reply_block,
  lead(record) OVER pair AS _reply_record,
  lead(ts_ns) OVER pair AS _reply_ts_ns,
  lead(command) OVER pair AS _reply_command,
  lead(failure) OVER pair AS _reply_failure,
  lead(segment) OVER pair AS _reply_segment,
  lag(command) OVER pair AS _request_command
FROM ranked WINDOW pair AS (PARTITION BY {_QUEUE}, _rank ORDER BY block, record)
"""


PAIRED: Final = _paired(_KEYED)
"""Adds the reply of each request, and the request of each reply, by request id."""

REFUSED: Final = _paired(
    f"""
SELECT *, lead(CASE WHEN _step = -1 AND (failure OR command = 'CONDITIONAL_CHECK_FAILED')
    THEN struct(block, record, ts_ns, command) END) IGNORE NULLS
  OVER (PARTITION BY {_QUEUE} ORDER BY block, record) AS _failure
FROM ({_KEYED}) AS keys
"""
)
"""Adds the next failure with the same request id: a writer may use one id for all its appends."""

_WRITER: Final = "writer_id, _seat, connection, life, file"

_REPLY: Final = (
    "struct(_reply_block AS block, _reply_record AS record, _reply_ts_ns AS ts_ns, _reply_command AS command)"
)

WRITTEN: Final = f"""
WITH seated AS (
  SELECT *, CASE WHEN _role IS NULL THEN 1 + record ELSE 0 END AS _seat
  FROM (SELECT * EXCEPT (_queue, _n, _rank, _balance, _floor, _floor_before, _request_command),
    _balance - _floor AS _waiting, {MISFIT} AS _misfit, CASE
      WHEN error IS NOT NULL THEN NULL
      WHEN direction = 'request' AND command = 'SETUP_APPEND' THEN 'setup'
      WHEN direction = 'request' AND command = 'APPEND_BLOCK' THEN 'block'
      WHEN direction = 'request' AND command IN ({names(APPENDS)}) THEN 'append'
      WHEN direction = 'reply' AND command = 'APPEND_SETUP' THEN 'ready'
      WHEN direction = 'reply' AND command = 'DATA_APPENDED' THEN 'ack' END AS _role
    FROM {{refused}}) AS acting
), set_up AS (
  SELECT *,
    count(CASE WHEN _role = 'setup' THEN 1 END) OVER so_far AS _epoch,
    last_value(CASE WHEN _role = 'setup' THEN segment END) IGNORE NULLS OVER so_far AS _writer_segment
  FROM seated WINDOW so_far AS (PARTITION BY {_WRITER} ORDER BY block, record {_UP_TO})
), numbered AS (
  SELECT * EXCEPT (_number, _acked, _known),
    CASE WHEN _number.epoch = _epoch THEN _number.event_number END AS _number_before,
    CASE WHEN _acked.epoch = _epoch THEN _acked.event_number END AS _ack_before,
    CASE WHEN _known.epoch = _epoch THEN _known.event_number END AS _known_before
  FROM (SELECT *,
      max(CASE WHEN _role = 'append' THEN struct(_epoch AS epoch, event_number) END) OVER before AS _number,
      max(CASE WHEN _role = 'ack' THEN struct(_epoch AS epoch, event_number) END) OVER before AS _acked,
      max(CASE WHEN _role = 'ready' THEN struct(_epoch AS epoch, event_number) END) OVER before AS _known
    FROM set_up WINDOW before AS (PARTITION BY {_WRITER} ORDER BY block, record {_BEFORE})) AS highest
), acknowledged AS (
  SELECT *, last_value(
      CASE WHEN _role = 'ack' AND (_ack_before IS NULL OR event_number > _ack_before)
      THEN struct(block, record, ts_ns) END) IGNORE NULLS
    OVER (PARTITION BY {_WRITER}, _epoch ORDER BY event_number DESC, _role = 'append', block, record {_UP_TO}) AS _ack
  FROM numbered
)
SELECT * EXCEPT (_seat, _failure, _reply_block, _reply_record, _reply_ts_ns, _reply_command, _opened, _closed,
    _followed, _misfit, _waiting, _number_before, _ack_before, _known_before),
  CASE
    WHEN _role IS NULL OR _role <> 'append' THEN NULL
    WHEN command <> 'APPEND_BLOCK_END' AND (_reply_failure OR _reply_command = 'CONDITIONAL_CHECK_FAILED')
      THEN {_REPLY}
    WHEN _ack IS NULL THEN _failure END AS _refusal,
  _reply_block IS NOT NULL AS _paired,
  CASE WHEN (_role IS NULL OR _role <> 'append') AND _reply_block IS NOT NULL THEN {_REPLY} END AS _answer,
  {BROKEN} AS _broken
FROM acknowledged
"""
"""Adds the writer's segment, its previous event numbers (in the same `_epoch`, which rises with time), the ack that
covers an append or the failure that refused it, and broken rules. Drops intermediate columns, because persisting costs
per column. `_answer`: the reply to a request that is not an append."""

COVERING: Final = """
SELECT file, writer_id, _writer_segment AS segment, collect_list(since) AS later
FROM (
  SELECT file, writer_id, _writer_segment, struct(
      max(CASE WHEN _role = 'setup' THEN block END) AS block,
      max(CASE WHEN _role = 'setup' THEN record END) AS record,
      max(CASE WHEN _role IN ('ready', 'ack') THEN event_number END) AS known) AS since
  FROM {written} WHERE _role IS NOT NULL AND _epoch > 0
  GROUP BY file, writer_id, _writer_segment, connection, life, _epoch)
WHERE since.known IS NOT NULL
GROUP BY file, writer_id, _writer_segment
"""
"""The highest event number that the store has reported of a writer after each of its set-ups."""

_STATUS: Final = f"""CASE
      WHEN _orphan THEN '{Status.ORPHAN}'
      WHEN _refusal IS NOT NULL THEN '{Status.REFUSED}'
      WHEN _role = 'append' AND _ack IS NOT NULL AND struct(_ack.block, _ack.record) > struct(w.block, w.record)
        THEN '{Status.ANSWERED}'
      WHEN _role = 'append' AND _ack IS NOT NULL THEN '{Status.REPEATED}'
      WHEN _role = 'append' AND exists(c.later, each -> struct(each.block, each.record) > struct(w.block, w.record)
        AND each.known >= w.event_number) THEN '{Status.COVERED}'
      WHEN _role <=> 'append' THEN CASE WHEN _ends THEN '{Status.LOST}' ELSE '{Status.WAITING}' END
      WHEN _reply_failure THEN '{Status.REFUSED}'
      WHEN _paired THEN '{Status.ANSWERED}'
      WHEN _ends THEN '{Status.UNANSWERED}' ELSE '{Status.WAITING}' END"""
_BLOCK: Final = "w._role = 'append' AND w.command = 'APPEND_BLOCK_END' AND w._started IS NOT NULL"

_ENDED: Final = f"""
SELECT w.*, {_STATUS} AS status,
  CASE WHEN {_BLOCK} THEN CAST(w._started.data_bytes AS BIGINT) END AS block_bytes,
  CASE WHEN {_BLOCK} THEN CAST(w.size_of_whole_events AS BIGINT) END AS whole_bytes,
  CAST(CASE WHEN w.command = 'CONDITIONAL_APPEND' THEN w.data_bytes + 8L ELSE w.data_bytes END AS BIGINT) AS own_bytes
FROM {{written}} AS w
LEFT JOIN {{covering}} AS c ON w.file = c.file AND w.writer_id = c.writer_id AND w._writer_segment = c.segment
WHERE w._step = 1 OR w._orphan
"""

_DONE: Final = f"""
SELECT *, CASE
    WHEN _orphan THEN struct(block, record, ts_ns, command)
    WHEN _refusal IS NOT NULL THEN _refusal
    WHEN _role = 'append' AND status = '{Status.ANSWERED}'
      THEN struct(_ack.block AS block, _ack.record AS record, _ack.ts_ns AS ts_ns, 'DATA_APPENDED' AS command)
    ELSE _answer END AS reply,
  CASE
    WHEN whole_bytes IS NULL OR whole_bytes NOT BETWEEN 0 AND block_bytes THEN NULL
    ELSE whole_bytes < block_bytes AND own_bytes = 0 END AS premature
FROM ({_ENDED}) AS ended
"""

EXCHANGES: Final = f"""
SELECT {_LIFE}, block, record, ts_ns,
  CASE WHEN NOT _orphan THEN command END AS command,
  CASE WHEN _role = 'append' THEN coalesce(_writer_segment, _reply_segment)
    ELSE coalesce(segment, _reply_segment) END AS segment,
  flow, request_id, writer_id, size, status,
  CASE WHEN NOT _orphan THEN _paired END AS paired,
  reply.block AS reply_block, reply.record AS reply_record, reply.ts_ns AS reply_ts_ns, reply.command AS reply_command,
  CASE WHEN NOT _orphan THEN try_subtract(reply.ts_ns, ts_ns) END AS latency_ns,
  CASE WHEN _role = 'append'
    THEN try_add(try_subtract(event_number, CAST(coalesce(num_events, 1) AS BIGINT)), 1L) END AS first_event,
  CASE WHEN _role = 'append' THEN event_number END AS last_event,
  CASE
    WHEN _role IS NULL OR _role <> 'append' THEN NULL
    WHEN block_bytes IS NULL THEN own_bytes
    WHEN premature IS NULL THEN block_bytes + own_bytes
    WHEN whole_bytes = block_bytes THEN block_bytes
    WHEN premature THEN whole_bytes
    ELSE block_bytes - 8 + own_bytes END AS append_bytes,
  block_bytes, whole_bytes, premature
FROM ({_DONE}) AS done
"""

_WHERE: Final = f"{_LIFE}, block, record, ts_ns, direction, command"

VIOLATIONS: Final = f"""
SELECT broken.rule, {_WHERE}, coalesce(segment, _writer_segment) AS segment, writer_id, request_id,
  broken.expected, broken.actual
FROM {{written}} LATERAL VIEW explode(_broken) AS broken WHERE _broken IS NOT NULL
"""

_HELD: Final = f"""
SELECT *, count(CASE WHEN _role = 'setup' THEN 1 END)
    OVER (PARTITION BY {_LIFE}, flow ORDER BY block, record {_UP_TO}) AS tenure,
  CASE WHEN _role = 'append' THEN CASE
    WHEN _refusal IS NOT NULL THEN struct(_refusal.block AS block, _refusal.record AS record)
    WHEN _ack IS NOT NULL THEN struct(_ack.block AS block, _ack.record AS record) END END AS done
FROM {{written}} WHERE flow > 0 AND _role IN ('setup', 'append')
"""

_TENURES: Final = f"""
SELECT {_LIFE}, flow, tenure, max(done) AS done, max(_role = 'append' AND done IS NULL) AS waits,
  max(CASE WHEN _role = 'setup'
    THEN struct(block, record, ts_ns, direction, command, segment, writer_id, request_id) END) AS setup
FROM ({_HELD}) AS held WHERE tenure > 0 GROUP BY {_LIFE}, flow, tenure
"""

_FOLLOWED: Final = f"""
SELECT *, lag(setup.writer_id) OVER previous AS writer_before, lag(done) OVER previous AS done_before,
  lag(waits) OVER previous AS waits_before
FROM ({_TENURES}) AS tenures WINDOW previous AS (PARTITION BY {_LIFE}, flow ORDER BY tenure)
"""

FLOW_REUSE: Final = f"""
SELECT '{Rule.FLOW_REUSE.name}' AS rule, {_LIFE}, setup.block, setup.record, setup.ts_ns, setup.direction,
  setup.command, setup.segment, setup.writer_id, setup.request_id, CAST(NULL AS BIGINT) AS expected,
  CAST(flow AS BIGINT) AS actual
FROM ({_FOLLOWED}) AS followed
WHERE writer_before <> setup.writer_id AND (waits_before OR done_before > struct(setup.block, setup.record))
"""

_HEAD: Final = "substring(f.frame, 25 + e.size_of_whole_events, 8)"

_FOUND: Final = f"""
SELECT e.*, {_HEAD} AS head, e._started.data_bytes - e.size_of_whole_events AS left_bytes
FROM {{written}} AS e JOIN {{blocks}} AS f
  ON e.file = f.file AND e._started.block = f.block AND e._started.record = f.record
WHERE {OWN} AND size_of_whole_events >= 0 AND size_of_whole_events < _started.data_bytes AND _epoch > 0
"""

_PARSED: Final = f"""
SELECT *, length(head) = 8 AS whole,
  CASE hex(substring(head, 1, 4)) WHEN 'FFFFFFFF' THEN -1 WHEN 'FFFFFFFE' THEN -2 END AS tail,
  CAST(conv(hex(substring(head, 5, 4)), 16, 10) AS BIGINT) AS tail_bytes
FROM ({_FOUND}) AS found
"""

TAILS: Final = f"""
SELECT CASE WHEN tail = -1 AND whole AND tail_bytes <= left_bytes - 8 THEN '{Rule.PADDED_DATA.name}'
    ELSE '{Rule.BLOCK_TAIL.name}' END AS rule,
  {_WHERE}, coalesce(segment, _writer_segment) AS segment, writer_id, request_id,
  CAST(CASE WHEN tail = -1 AND whole AND tail_bytes <= left_bytes - 8 THEN 0 END AS BIGINT) AS expected,
  CAST(CASE WHEN tail = -1 AND whole AND tail_bytes <= left_bytes - 8 THEN data_bytes END AS BIGINT) AS actual
FROM ({_PARSED}) AS parsed
WHERE NOT whole OR tail IS NULL OR tail_bytes > left_bytes - 8 OR (tail = -1 AND data_bytes > 0)
"""
"""Violations of the two rules about the bytes of append blocks; {blocks} has those frames."""
