"""The points of a run at which a failure can happen, and the classes of points that are alike.

A point is a request or a controller call: the `nth` of its type in the run. The first contact of a connection is its
HELLO. Points are alike if they have the same type, the same previous request on their connection, the same kind of
segment and the same outcome; of each class the first, the second and the last member are tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from segstore.wire.names import SegmentName, stream_of

if TYPE_CHECKING:
    from segstore.server.faults import Seen


class Point(NamedTuple):
    """A request or a controller call. nth: among requests of its type, from 1. reply: its outcome in the good run."""

    type_name: str
    nth: int
    is_call: bool
    alike: str
    segment: str
    reply: str

    @property
    def match(self) -> str:
        """The filter of the fault rule."""
        return f"{'rpc' if self.is_call else 'type'} = {self.type_name}"

    def __str__(self) -> str:
        return f"{self.type_name} {self.nth}"


class PointClass(NamedTuple):
    """Points that are alike, in the order of the run."""

    name: str
    points: tuple[Point, ...]

    def members(self, *, is_complete: bool) -> tuple[Point, ...]:
        """Returns the first, the second and the last point, or all points."""
        points = self.points
        return points if is_complete or len(points) <= 3 else (points[0], points[1], points[-1])

    def __str__(self) -> str:
        return f"{len(self.points)} × {self.name}"


def kind_of(segment: str) -> str:
    """Returns the kind of a segment: transaction, transient, reader group, watermarks, table, stream, or other.

    The table of a reader group of the Rust client has the name of a table.
    """
    name = SegmentName.parse(segment)
    if name.parent is not None:
        return "transaction" if name.transient_id is None else "transient"
    if (name.stream or "").startswith("_RG"):
        return "reader group"
    if (name.stream or "").startswith("_MARK"):
        return "watermarks"
    if name.is_table or "_kvtable" in segment:
        return "table"
    return "other" if name.stream is None else "stream"


def subject_of(segment: str) -> str:
    """Returns the stream of a segment, or the name of a segment that belongs to no stream."""
    return stream_of(segment) or segment


def points_of(requests: Iterable[Seen]) -> dict[int, Point]:
    """Returns the points of a run, in order, by the numbers of their requests."""
    counts: Counter[str] = Counter()
    previous: dict[int, str] = {}
    points: dict[int, Point] = {}
    for seen in requests:
        name = seen.type_name
        if name == "KEEP_ALIVE":
            continue
        counts[name] += 1
        segment = seen.segments[0] if seen.segments else ""
        reply = seen.reply or ""
        if seen.call is not None:
            alike = f"call {name}" + (f" → {reply}" if reply else "")
        else:
            after = previous.get(seen.connection)
            alike = name + (f" after {after}" if after else "") + (f", {kind_of(segment)}" if segment else "")
            alike += f" → {reply}" if seen.failure else ""
            previous[seen.connection] = name
        points[seen.number] = Point(name, counts[name], seen.call is not None, alike, segment, reply)
    return points


def classes_of(points: Iterable[Point]) -> list[PointClass]:
    """Returns the classes of points, in the order of their first members."""
    classes: dict[str, list[Point]] = {}
    for point in points:
        classes.setdefault(point.alike, []).append(point)
    return [PointClass(name, tuple(members)) for name, members in classes.items()]
