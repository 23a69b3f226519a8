"""Tables of how traces use connections, flows, writers and append blocks, made by the engine of their rows.

They show the effect of pooling (connections against flows and segments over time, bytes in flight on each connection,
append blocks padded because something else had to be sent) and of lazy and partial writers (writers, connections and
segments of each stream).

Invariant: the tables count rows of `segstore.pipeline.report.analysis`; times are divided into ticks of equal width.
Sums of times or event numbers are decimals, because a bigint overflows, which is an error in Spark's ANSI mode.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from segstore.pipeline.engine import Table, engine_of
from segstore.pipeline.report.analysis import named
from segstore.pipeline.report.analysis_rules import APPENDS, Status
from segstore.wire.names import stream_of

_LIFE: Final = "file, connection, life"
_MOST_TICKS: Final = 120
_APPENDS: Final = ", ".join(f"'{name}'" for name in APPENDS)
_ENDED: Final = f"('{Status.ANSWERED}', '{Status.REFUSED}')"


class Ticks(NamedTuple):
    """The time of a trace in equal parts; tick n starts at `(first + n) * width_ns`."""

    first: int
    width_ns: int
    start_ns: int
    stop_ns: int

    def of(self, column: str) -> str:
        """Returns an SQL expression for the tick of a time."""
        return f"(({column} DIV {self.width_ns}) - ({self.first}))"


def ticks(frames: Table) -> Ticks | None:
    """Divides the time from the first to the last record into at most 120 ticks; None without records."""
    engine = engine_of(frames)
    ((low, high),) = engine.rows(engine.statement("SELECT min(ts_ns), max(ts_ns) FROM {frames}", frames=frames))
    if low is None:
        return None
    width = max(1, -(-(high - low + 1) // (_MOST_TICKS - 1)))
    first = -(-low // width) if low < 0 else low // width  # towards zero, as DIV
    return Ticks(first, width, low, high)


def used(frames: Table, cut: Ticks) -> Table:
    """Returns frames and bytes by tick, connection, flow, segment and writer: what `over_time` and `connections` count.

    sent: the number of records of kind `frame` or `bytes`; frames: of kind `frame`. Controller calls are not counted.
    """
    return engine_of(frames).statement(
        f"""
        SELECT {cut.of("ts_ns")} AS tick, {_LIFE}, flow, segment, writer_id, min(ts_ns) AS first_ts_ns,
          max(ts_ns) AS last_ts_ns, max(kind = 'close') AS closed, count(CASE WHEN kind = 'frame' THEN 1 END) AS frames,
          count(CASE WHEN kind IN ('frame', 'bytes') THEN 1 END) AS sent,
          sum(CASE WHEN direction = 'request' AND kind IN ('frame', 'bytes') THEN size ELSE 0 END) AS sent_bytes,
          sum(CASE WHEN direction = 'reply' AND kind IN ('frame', 'bytes') THEN size ELSE 0 END) AS received_bytes
        FROM {{frames}} WHERE kind <> 'call' GROUP BY tick, {_LIFE}, flow, segment, writer_id
        """,
        frames=frames,
    )


def over_time(used: Table) -> Table:
    """Returns for each tick: frames, bytes, open connections, and the flows, segments and writers in use.

    A connection is open from its first record to its last. Flow 0 is not a flow; flows with only replies count.
    """
    return engine_of(used).statement(
        f"""
        WITH counted AS (
          SELECT tick, sum(sent) AS frames, sum(sent_bytes + received_bytes) AS bytes,
            count(DISTINCT CASE WHEN flow > 0 THEN ({_LIFE}, flow) END) AS flows,
            count(DISTINCT segment) AS segments, count(DISTINCT writer_id) AS writers
          FROM {{used}} WHERE sent > 0 GROUP BY tick
        ), lives AS (SELECT min(tick) AS first_tick, max(tick) AS last_tick FROM {{used}} GROUP BY {_LIFE}
        ), steps AS (
          SELECT tick, sum(step) AS step FROM (
            SELECT first_tick AS tick, 1 AS step FROM lives UNION ALL SELECT last_tick + 1, -1 FROM lives
            UNION ALL SELECT tick, 0 FROM counted)
          GROUP BY tick
        ), open AS (
          SELECT tick, sum(step) OVER (ORDER BY tick ROWS UNBOUNDED PRECEDING) AS connections FROM steps)
        SELECT o.tick, o.connections, coalesce(c.frames, 0) AS frames, coalesce(c.bytes, 0) AS bytes,
          coalesce(c.flows, 0) AS flows, coalesce(c.segments, 0) AS segments, coalesce(c.writers, 0) AS writers
        FROM open AS o LEFT JOIN counted AS c ON o.tick = c.tick
        """,
        used=used,
    )


def in_flight(exchanges: Table) -> Table:
    """Returns the bytes of appends in flight on each connection after each append and reply: `bytes` at `ts_ns`.

    A reply that answers several appends has a row for each append, with the same `bytes`.
    """
    return engine_of(exchanges).statement(
        f"""
        SELECT {_LIFE}, block, record, ts_ns, sum(step) OVER (
            PARTITION BY {_LIFE} ORDER BY block, record RANGE UNBOUNDED PRECEDING) AS bytes
        FROM (
          SELECT {_LIFE}, block, record, ts_ns, append_bytes AS step FROM {{exchanges}} WHERE command IN ({_APPENDS})
          UNION ALL
          SELECT {_LIFE}, reply_block, reply_record, reply_ts_ns, -append_bytes FROM {{exchanges}}
          WHERE command IN ({_APPENDS}) AND status IN {_ENDED})
        """,
        exchanges=exchanges,
    )


def connections(used: Table, flying: Table) -> Table:
    """Returns for each connection: its time span, frames, bytes both ways, its users, and maximum bytes in flight."""
    return engine_of(used).statement(
        f"""
        WITH summed AS (
          SELECT {_LIFE}, min(first_ts_ns) AS first_ts_ns, max(last_ts_ns) AS last_ts_ns, max(closed) AS closed,
            sum(frames) AS frames, sum(sent_bytes) AS sent_bytes, sum(received_bytes) AS received_bytes,
            count(DISTINCT CASE WHEN flow > 0 THEN flow END) AS flows, count(DISTINCT segment) AS segments,
            count(DISTINCT writer_id) AS writers
          FROM {{used}} GROUP BY {_LIFE}
        ), most AS (SELECT {_LIFE}, max(bytes) AS most_in_flight_bytes FROM {{flying}} GROUP BY {_LIFE})
        SELECT t.*, coalesce(m.most_in_flight_bytes, 0) AS most_in_flight_bytes FROM summed AS t LEFT JOIN most AS m
          ON t.file = m.file AND t.connection = m.connection AND t.life = m.life
        """,
        used=used,
        flying=flying,
    )


def block_fill(exchanges: Table) -> Table:
    """Returns append blocks by fill, in tenths, and by whether they ended early (were padded)."""
    return engine_of(exchanges).statement(
        """
        SELECT premature,
          CAST((CASE WHEN block_bytes = 0 THEN 100 ELSE (used * 100) DIV block_bytes END DIV 10) * 10 AS INT)
            AS fill_percent,
          count(*) AS blocks, sum(block_bytes) AS block_bytes, sum(used) AS used_bytes
        FROM (SELECT premature, block_bytes, least(append_bytes, block_bytes) AS used
          FROM {exchanges} WHERE premature IS NOT NULL)
        GROUP BY premature, fill_percent
        """,
        exchanges=exchanges,
    )


def streams(frames: Table, exchanges: Table) -> Table:
    """Returns for each stream: segments seen and written to, writers set up and idle, and connections."""
    return engine_of(frames).statement(
        f"""
        WITH named AS (SELECT * FROM {{named}} WHERE stream IS NOT NULL),
        wrote AS (
          SELECT file, connection, life, segment, writer_id, count(CASE WHEN command IN ({_APPENDS}) THEN 1 END) AS
            appends, sum(append_bytes) AS bytes, sum(CAST(last_event AS DECIMAL(38, 0)) - first_event + 1) AS events
          FROM {{exchanges}} WHERE command = 'SETUP_APPEND' OR command IN ({_APPENDS})
          GROUP BY file, connection, life, segment, writer_id
        ), writers AS (
          SELECT n.stream, w.file, w.writer_id, sum(w.appends) AS appends FROM wrote AS w
          JOIN named AS n ON w.segment = n.segment GROUP BY n.stream, w.file, w.writer_id
        ), counted AS (
          SELECT n.stream, count(DISTINCT CASE WHEN w.appends > 0 THEN w.segment END) AS segments_written,
            count(DISTINCT (w.file, w.connection, w.life)) AS connections, sum(w.appends) AS appends,
            CAST(sum(w.events) AS BIGINT) AS events, sum(w.bytes) AS bytes
          FROM wrote AS w JOIN named AS n ON w.segment = n.segment GROUP BY n.stream
        ), idle AS (
          SELECT stream, count(*) AS writers, count(CASE WHEN appends = 0 THEN 1 END) AS writers_idle
          FROM writers GROUP BY stream
        ), seen AS (SELECT stream, count(*) AS segments FROM named GROUP BY stream)
        SELECT s.stream, s.segments, coalesce(c.segments_written, 0) AS segments_written,
          coalesce(i.writers, 0) AS writers, coalesce(i.writers_idle, 0) AS writers_idle,
          coalesce(c.connections, 0) AS connections, coalesce(c.appends, 0) AS appends,
          coalesce(c.events, 0) AS events, coalesce(c.bytes, 0) AS bytes
        FROM seen AS s LEFT JOIN counted AS c ON s.stream = c.stream LEFT JOIN idle AS i ON s.stream = i.stream
        """,
        named=named(frames, stream_of, "stream"),
        exchanges=exchanges,
    )
