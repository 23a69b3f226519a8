"""Requests of `segstore ctl` to the HTTP API of a server, and how their answers are printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from segstore.cli.terminal import echo, error_text
from segstore.wire.printable import printable

URL: Final = "http://127.0.0.1:8080"
_PATIENCE_S: Final = 60.0
_MOST_BYTES: Final = 64 * 1024 * 1024


class Api:
    """The HTTP API at a URL. as_json: whether answers are printed as they are."""

    def __init__(self, url: str, token: str | None, *, as_json: bool = False) -> None:
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.netloc or parts.path.strip("/") or parts.query or "@" in parts.netloc:
            raise click.UsageError(f"{url}: a URL is http://HOST:PORT, as serve announces it")
        self._where = parts.netloc
        self._token = token
        self.as_json = as_json

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer's JSON; None for none. Raises ClickException for a refusal."""
        from http.client import HTTPConnection, HTTPException
        from urllib.parse import urlencode

        where = f"http://{self._where}"
        given = {name: str(value) for name, value in query.items() if value is not None}
        headers = {"content-type": "application/json"} if body is not None else {}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        try:
            connection = HTTPConnection(self._where, timeout=_PATIENCE_S)
            try:
                data = None if body is None else json.dumps(body)
                connection.request(method, f"/v1/{path}?{urlencode(given)}", data, headers)
                answer = connection.getresponse()
                said = answer.read(_MOST_BYTES + 1)
            finally:
                connection.close()
        except OSError as error:
            raise click.ClickException(f"{where}: {error_text(error)}; is it served? --http-port") from error
        except (HTTPException, ValueError) as error:
            raise click.ClickException(f"{where}: this is no HTTP API: {error!r}") from error
        try:
            found = json.loads(said) if said and len(said) <= _MOST_BYTES else None
        except (ValueError, RecursionError) as error:
            raise click.ClickException(f"{where}: the answer to {method} /v1/{path} is not JSON") from error
        if answer.status >= 300:
            detail = found.get("detail") if isinstance(found, dict) else None
            raise click.ClickException(str(detail or f"{where} answered {answer.status} {answer.reason}"))
        return found

    def show(self, found: Any, columns: Sequence[str] = (), rows: str = "") -> None:
        """Prints an answer: as JSON, as a table of the list `rows`, or as one line for each key."""
        if self.as_json:
            echo(json.dumps(found))
        elif rows:
            _table(columns, found[rows])
            if found.get("next") is not None:
                echo(f"segstore: there are more: --after {_cell(found['next'])}", err=True)
        else:
            for name, value in (found or {}).items():
                echo(f"{name}: {_cell(value)}")

    def show_parts(self, found: Any, tables: Mapping[str, Sequence[str]]) -> None:
        """Prints an answer: as JSON, or a line for each key, and below a table of each list in `tables`."""
        if self.as_json:
            echo(json.dumps(found))
            return
        self.show({name: value for name, value in found.items() if name not in tables})
        for name, columns in tables.items():
            if found[name]:
                echo("")
                _table(columns, found[name])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_cell, value))
    return "" if value is None else printable(value) if isinstance(value, str) else json.dumps(value)


def _table(columns: Sequence[str], rows: Iterable[Any]) -> None:
    cells = [list(columns), *([_cell(row[name]) for name in columns] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    for row in cells:
        echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def read_token(path: Path | None) -> str | None:
    return None if path is None else path.read_text(encoding="ascii", errors="replace").strip()


pass_api: Final[Callable[..., Any]] = click.make_pass_decorator(Api)
