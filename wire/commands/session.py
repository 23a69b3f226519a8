"""Connection commands, such as the handshake and keep-alives."""

from segstore.wire.schema import Command, Int32, command


@command(-127, "HELLO", request=True, reply=True)
class Hello(Command, frozen=True, gc=False):
    """The first command in each direction: the newest wire version that the sender speaks and the oldest it accepts."""

    high_version: Int32
    low_version: Int32

    @property
    def request_id(self) -> int:
        return 0


@command(100, "KEEP_ALIVE", request=True, reply=True)
class KeepAlive(Command, frozen=True, gc=False):
    """Shows that the peer is alive; answered with another."""

    @property
    def request_id(self) -> int:
        return -1
