"""What a failure says of a segment's place is asked for anew, and nothing else is."""

from segstore.client.connection import Endpoint, FixedStore, learn
from segstore.client.errors import ClientError, ConnectionLost, PeerRefused, TokenExpired, TokenRefused, WrongStore
from tests.looped import looped

STORE = Endpoint("store", 12345)


class Noted(FixedStore):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(STORE, "token")
        self.told: list[str] = []

    def forget(self, segment: str, endpoint: Endpoint) -> None:
        self.told.append(f"{segment} is not at {endpoint}")

    def expired(self, segment: str, token: str) -> None:
        self.told.append(f"{token} of {segment} has expired")


@looped(
    ("error", "endpoint", "in_doubt", "told"),
    [
        (TokenExpired("it has expired"), STORE, True, ["token of s/s/0 has expired"]),
        (WrongStore("not here"), STORE, False, ["s/s/0 is not at store:12345"]),
        (WrongStore("not here"), None, True, []),
        (ConnectionLost("it is gone"), STORE, True, ["s/s/0 is not at store:12345"]),
        (ConnectionLost("it is gone"), STORE, False, []),
        (PeerRefused("it cannot"), STORE, False, []),
        (TokenRefused("not with that"), STORE, False, []),
    ],
)
def test_a_failure_says_what_is_to_be_asked_for_anew(
    error: ClientError, endpoint: Endpoint | None, in_doubt: bool, told: list[str]
) -> None:
    noted = Noted()
    learn(noted, "s/s/0", error, endpoint, "token", in_doubt=in_doubt)
    assert noted.told == told
