"""What a recorder is told: every byte of every connection, both ways, who ended it and why."""

from collections.abc import Sequence

from segstore.server import MockSegmentStore
from segstore.wire import Buffer, Hello, KeepAlive, encode
from segstore.wire.trace import Direction
from tests.server.support import Peer, until


class Notes:
    """A recorder that keeps what it is told."""

    requests = 0

    def __init__(self) -> None:
        self.begun: list[dict[str, str]] = []
        self.bytes: dict[tuple[int, str], bytes] = {}
        self.ended: dict[int, tuple[Direction, dict[str, str]]] = {}

    def skip_number(self) -> int:
        self.requests += 1
        return self.requests

    def opened(self, **facts: str) -> int:
        self.begun.append(facts)
        return len(self.begun)

    def _add(self, connection: int, way: str, data: bytes) -> None:
        self.bytes[connection, way] = self.bytes.get((connection, way), b"") + data

    def received(self, connection: int, data: Buffer, *, lasting: bool = False) -> bool:
        self._add(connection, "in", bytes(data))
        return False

    def sent(self, connection: int, parts: Sequence[Buffer]) -> None:
        self._add(connection, "out", b"".join(parts))

    def closed(self, connection: int, by: Direction, **facts: str) -> None:
        self.ended[connection] = by, facts


async def test_a_recorder_gets_all_bytes_of_both_directions() -> None:
    notes, sent = Notes(), encode(Hello(17, 5)) + encode(KeepAlive()) + b"\0\0"
    async with MockSegmentStore(watched=False) as mock:
        mock.server.hub.recorder = notes
        async with await Peer.connect(mock) as peer:
            host, port = peer.writer.get_extra_info("sockname")
            peer.send_bytes(sent)
            replies = await peer.reader.readexactly(24)
        await until(lambda: len(notes.ended) == 1)
        assert notes.begun == [{"peer": f"{host}:{port}", "store": f"{mock.host}:{mock.port}"}]
    assert notes.bytes == {(1, "in"): sent, (1, "out"): replies}
    assert notes.ended == {1: (Direction.REQUEST, {})}
