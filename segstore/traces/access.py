"""How a replay reaches a store and its controller: TLS, credentials, delegation tokens.

Recordings contain no delegation tokens by default, and recorded tokens have expired. So where a controller gives tokens
in its answers, the requests for the same stream carry these tokens; without a controller, all requests carry one given
token.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from segstore.server.controller.state import TABLE_SUFFIX
from segstore.server.net import trusting
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call, segments_of

_TOKEN: Final = "delegation_token"
_OF_ANSWERS: Final = "delegationToken"


@dataclass
class Access:
    """The TLS settings and credentials of a replay.

    tls: for connecting to the store; None without TLS. trust: the authorities that the controller's certificate may be
    of (PEM), b"" for gRPC's own; None without TLS. authorization: metadata of controller calls, or "". token: the
    delegation token of all requests; None for the controller's tokens, or else the trace's.
    """

    tls: ssl.SSLContext | None = None
    trust: bytes | None = None
    authorization: str = field(default="", repr=False)
    token: str | None = field(default=None, repr=False)
    _given: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def over_tls(cls, ca: Path | None, **more: Any) -> Self:
        """With TLS. ca: file of trusted authorities (PEM); None for the system's. Raises OSError."""
        return cls(*trusting(ca), **more)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a controller call."""
        return (("authorization", self.authorization),) if self.authorization else ()

    def warn(self, controller: Endpoint) -> None:
        """Logs a warning if credentials are sent to a controller elsewhere without TLS, as the client does."""
        if self.authorization and self.tls is None:
            from segstore.client.connection import warn_if_unencrypted  # loads the client

            warn_if_unencrypted([controller])

    def learn(self, request: Call, answer: Call) -> None:
        """Keeps the token in an answer for the streams, or the table, that its request names."""
        token = getattr(answer.content, _OF_ANSWERS, "") if answer.status == "OK" else ""
        if token:
            table = getattr(request.content, "kvtName", "")
            named = ((scope, stream or (table and table + TABLE_SUFFIX)) for scope, stream in request.streams)
            self._given.update({"/".join(filter(None, each)): token for each in named})

    def fields(self, command: Any) -> dict[str, str]:
        """The fields of a request to replace: its token, if there is another one for it."""
        token = self.token
        if token is None and self._given and hasattr(command, _TOKEN):
            name = "/".join(next(iter(segments_of(command)), "").split("/")[:2])
            token = self._given.get(name) or self._given.get(name.removesuffix(TABLE_SUFFIX))
        return {} if token is None or not hasattr(command, _TOKEN) else {_TOKEN: token}
