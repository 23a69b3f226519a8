"""Parses recorded dialogues and replays one against a server: what was sent, what came back, who closed.

Frames are compared as bytes after `masking`. The replies to one step may come in any order, because the reference
answers different requests in any order. A late reply counts against the step in which it arrives.

Invariant: `hold` terminates: every wait has a deadline. A malformed record raises ValueError before anything is sent.
"""

from __future__ import annotations

import asyncio
import difflib
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from segstore.wire.codec import HEADER_BYTES, decode
from segstore.wire.endpoint import Endpoint
from segstore.wire.errors import WireError
from segstore.wire.inspect import describe, lines, pieces, summary
from tests.conformance.deviations import deviation_of
from tests.conformance.masking import TransientNames, mask, prints_a_buffer
from tests.conformance.report import Verdict, field_differences
from tests.conformance.servers import ADMIN

REPLY_TIMEOUT_S = 5.0
QUIET_S: Final = 0.3
"""How long to watch a step without expected replies, as the recorder did."""
SETTLE_S: Final = 0.04
"""How long to watch for extra replies after the last expected one."""
CLOSE_S: Final = 0.05
"""How long the server has to detect that this side has closed a connection."""


class Reply(msgspec.Struct, frozen=True):
    """A frame that the reference sent on a connection."""

    conn: str
    frame: bytes


class Step(msgspec.Struct, frozen=True):
    """One step: the action, and the reference's replies. said: its text in the file."""

    op: Literal["open", "close", "send", "wait"]
    said: str
    conn: str = ""
    send: bytes = b""
    wait_s: float = 0.0
    replies: tuple[Reply, ...] = ()
    closed: tuple[str, ...] = ()


class Dialogue(msgspec.Struct, frozen=True):
    """A named sequence of steps with one server; `racy` ones vary in the reference itself."""

    name: str
    server: str
    racy: bool
    steps: tuple[Step, ...]

    @property
    def family(self) -> str:
        """The first word of the name."""
        return self.name.split("_")[0]

    @property
    def setup(self) -> str:
        """The server's set-up; `server` also names the port."""
        return self.server.removesuffix(ADMIN)

    @classmethod
    def from_record(cls, what: dict[str, Any]) -> Dialogue:
        """Parses a recorded line. Raises ValueError if it is malformed."""
        try:
            steps = tuple(_step(number, step) for number, step in enumerate(what["steps"]))
            return cls(str(what["name"]), str(what["server"]), bool(what.get("racy", False)), steps)
        except (KeyError, TypeError, AttributeError) as cause:
            raise ValueError(f"dialogue {what.get('name')!r}: {type(cause).__name__}: {cause}") from cause


def _step(number: int, step: dict[str, Any]) -> Step:
    op = step["op"]
    if op not in {"open", "close", "send", "wait"}:
        raise ValueError(f"step {number}: no such op: {op!r}")
    sent = step.get("sends") or [step.get("send") or {}]
    names = [each.get("type", "bytes") for each in sent if isinstance(each, dict)]
    said = f"step {number}, {'send ' + ' '.join(names) if op == 'send' else op}"
    return Step(
        op=op,
        said=said,
        conn=step["conn"] if op != "wait" else "",
        send=bytes.fromhex(step["send_hex"]) if op == "send" else b"",
        wait_s=step["ms"] / 1000 if op == "wait" else 0.0,
        replies=tuple(Reply(each["conn"], bytes.fromhex(each["hex"])) for each in step.get("replies", ())),
        closed=tuple(each["conn"] for each in step.get("closed", ())),
    )


class _Inbox:
    """Frames received, and connections closed by the server, since the last step."""

    def __init__(self) -> None:
        self.frames: list[Reply] = []
        self.closed: list[str] = []
        self.changed = asyncio.Event()

    async def collect(
        self, frames: int, closes: int, timeout_s: float, quiet_s: float
    ) -> tuple[list[Reply], list[str]]:
        """Waits for the expected number, at most timeout_s; then until nothing has arrived for quiet_s."""
        deadline = time.monotonic() + timeout_s
        while len(self.frames) < frames or len(self.closed) < closes:
            if not await self._change(deadline - time.monotonic()):
                break
        while await self._change(quiet_s):
            pass
        found = self.frames, self.closed
        self.frames, self.closed = [], []
        return found

    async def _change(self, timeout_s: float) -> bool:
        if timeout_s <= 0:
            return False
        try:
            await asyncio.wait_for(self.changed.wait(), timeout_s)
        except TimeoutError:
            return False
        self.changed.clear()
        return True


class _Peer(asyncio.Protocol):
    """The client side of one connection."""

    def __init__(self, name: str, inbox: _Inbox) -> None:
        self.name = name
        self.inbox = inbox
        self.buffer = b""
        self.transport: asyncio.Transport | None = None
        self.open = True
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        buffer, self.buffer = self.buffer + data, b""
        for piece in pieces(buffer):
            if piece.whole:
                self.inbox.frames.append(Reply(self.name, piece.data))
            else:
                self.buffer = piece.data
        self.inbox.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.open:
            self.open = False
            self.inbox.closed.append(self.name)
            self.inbox.changed.set()
        self.lost.set()

    def send(self, data: bytes) -> None:
        if self.open and self.transport is not None:
            self.transport.write(data)

    async def close(self, *, at_once: bool = False) -> None:
        self.open = False
        if self.transport is not None:
            if at_once:
                self.transport.abort()
            else:
                self.transport.close()
        await asyncio.wait_for(self.lost.wait(), REPLY_TIMEOUT_S)


async def hold(dialogue: Dialogue, address: Endpoint) -> Verdict:
    """Replays the dialogue against the server at an address. Raises OSError if it is unreachable."""
    loop = asyncio.get_running_loop()
    inbox, names = _Inbox(), TransientNames()
    peers: dict[str, _Peer] = {}
    every: list[_Peer] = []
    differences: list[str] = []
    deviations: list[str] = []
    try:
        for step in dialogue.steps:
            if step.op == "open":
                _, peer = await asyncio.wait_for(
                    loop.create_connection(lambda step=step: _Peer(step.conn, inbox), *address),  # type: ignore[misc]
                    REPLY_TIMEOUT_S,
                )
                peers[step.conn] = peer
                every.append(peer)
                continue
            if step.op == "close":
                await peers[step.conn].close()
                await asyncio.sleep(CLOSE_S)
                continue
            sent = names.put(step.send)
            if step.op == "send":
                peers[step.conn].send(sent)
            expects = bool(step.replies or step.closed)
            quiet_s = SETTLE_S if expects else step.wait_s or QUIET_S
            replies, closed = await inbox.collect(len(step.replies), len(step.closed), REPLY_TIMEOUT_S, quiet_s)
            names.learn([reply.frame for reply in step.replies], [reply.frame for reply in replies])
            expected = [Reply(reply.conn, names.put(reply.frame)) for reply in step.replies]
            found = list(_compare(expected, replies))
            if Counter(step.closed) != Counter(closed):
                found.append(f"closed: expected {sorted(step.closed) or 'none'}, found {sorted(closed) or 'none'}")
            if found:
                excuse = deviation_of(sent)
                if excuse is not None:
                    deviations.append(excuse)
                else:
                    differences.append("\n".join([step.said, *(textwrap.indent(each, "  ") for each in found)]))
    finally:
        await asyncio.gather(*(peer.close(at_once=True) for peer in every))
    differences += [
        f"{peer.name}: at the end {peer.buffer[:32].hex()}… makes no frame" for peer in every if peer.buffer
    ]
    return Verdict(dialogue.name, tuple(differences), tuple(deviations))


def _compare(expected: list[Reply], found: list[Reply]) -> Iterator[str]:
    """Matches frames that are equal after masking, then reports the rest by type."""
    messages = any(prints_a_buffer(reply.frame) for reply in expected)
    left = [(reply, mask(reply.frame, messages=messages)) for reply in expected]
    more = [(reply, mask(reply.frame, messages=messages)) for reply in found]
    for reply, masked in list(left):
        same = next((each for each in more if each[0].conn == reply.conn and each[1] == masked), None)
        if same is not None:
            more.remove(same)
            left.remove((reply, masked))
    for reply, masked in left:
        like = next((each for each in more if each[0].conn == reply.conn and each[1][:4] == masked[:4]), None)
        if like is None:
            yield f"{reply.conn}: expected {_said(masked)}, found no such reply"
        else:
            more.remove(like)
            yield f"{reply.conn}: {_said(masked)} differs:\n{_frame_difference(masked, like[1])}"
    for reply, masked in more:
        yield f"{reply.conn}: expected no such reply, found {_said(masked)}"


def _said(frame: bytes) -> str:
    try:
        return summary(decode(frame, unknown="keep"))
    except WireError as error:
        return f"{frame[:64].hex()} ({error})"


def _frame_difference(expected: bytes, found: bytes) -> str:
    """Formats the difference by field, then by bytes: `-` the recording's, `+` the server's."""
    said = []
    try:
        said += [
            f"  {difference}" for difference in field_differences(decode(expected).to_dict(), decode(found).to_dict())
        ]
    except WireError as error:
        said.append(f"  {error}")
    one, other = (list(lines(describe(frame))) for frame in (expected, found))
    rows = difflib.unified_diff(one, other, n=0, lineterm="")
    said += [f"  {row}" for row in rows if not row.startswith(("---", "+++", "@@"))]
    return (
        "\n".join(said) if said else f"  {len(expected) - HEADER_BYTES} and {len(found) - HEADER_BYTES} bytes of body"
    )
