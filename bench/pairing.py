"""Pairs requests with replies by SQL windows: the statement that DuckDB runs beside the analysis.

A reply answers the oldest pending request with its request id on its connection: a queue. SQL models a queue as a walk:
+1 for a request, -1 for a reply. If the walk falls below 0 and all earlier points, the queue was empty, and the reply
is an orphan. The n-th request pairs with the n-th non-orphan reply. So pairing takes only sorting and running sums,
whatever the ids and however often they are reused, and no self-join.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from segstore.pipeline.report.analysis_rules import KEYS, REPLIES, REQUESTS

__all__ = ["PAIRED"]

_BEFORE: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_UP_TO: Final = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"


def _names(some: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in some)


_QUEUE: Final = "request_id, _queue, connection, life, file"

_KEYED: Final = f"""
SELECT *, CASE
  WHEN _step = 0 THEN 3 + record {" ".join(f"WHEN command = '{name}' THEN {key}" for name, key in KEYS.items())}
  ELSE 0 END AS _queue
FROM (SELECT *, CASE
    WHEN error IS NULL AND direction = 'request' AND command IN ({_names(REQUESTS)}) THEN 1
    WHEN error IS NULL AND direction = 'reply' AND command IN ({_names(REPLIES)}) THEN -1
    ELSE 0 END AS _step
  FROM {{frames}}) AS stepping
"""


PAIRED: Final = f"""
WITH walked AS (
  SELECT *, row_number() OVER so_far AS _n, sum(_step) OVER so_far AS _balance
  FROM ({_KEYED}) AS keyed WINDOW so_far AS (PARTITION BY {_QUEUE} ORDER BY block, record {_UP_TO})
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
"""Adds the reply of each request, and the request of each reply, by request id."""
