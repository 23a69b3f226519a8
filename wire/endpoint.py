"""Addresses of servers."""

from __future__ import annotations

from typing import NamedTuple


class Endpoint(NamedTuple):
    """A host and a port. Its text is host:port, with an IPv6 address in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Reads host:port; the host may be in brackets. Raises ValueError."""
        host, _, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not host or "[" in host or "]" in host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise ValueError(f"{text!r} is no HOST:PORT")
        return cls(host, int(port))
