"""Addresses of servers."""

from __future__ import annotations

from typing import Final, NamedTuple

_HIGHEST_PORT: Final = 65535


class Endpoint(NamedTuple):
    """A host and a port. Its text is host:port, with an IPv6 address in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.named_host}:{self.port}"

    @property
    def named_host(self) -> str:
        """The host as published to clients: IPv6 addresses in brackets, because the official clients append `:port`."""
        return f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Reads host:port; the host may be in brackets. Raises ValueError."""
        host, _, port = text.rpartition(":")
        try:
            if not (port.isascii() and port.isdecimal()):
                raise ValueError("no number")
            return cls.checked(host, int(port))
        except ValueError as problem:
            raise ValueError(f"{text!r:.200} is no HOST:PORT") from problem

    @classmethod
    def checked(cls, host: str, port: int) -> Endpoint:
        """Returns an endpoint that a peer names; the host may be in brackets. Raises ValueError if no connection to it
        is possible.
        """
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        try:
            if "[" in host or "]" in host:
                raise UnicodeError("brackets")
            host.encode("idna")  # as name resolution does
        except UnicodeError as problem:
            raise ValueError(f"{host!r:.200} is no host: {problem}") from problem
        if not host or " " in host or not host.isprintable() or not 0 <= port <= _HIGHEST_PORT:
            raise ValueError(f"host {host!r:.200} and port {port} are no address")
        return cls(host, port)
