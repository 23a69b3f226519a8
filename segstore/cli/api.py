"""Requests of `segstore ctl` to the HTTP API of a server, and how their answers are printed."""

from __future__ import annotations

import json
import os
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from segstore import __version__
from segstore.cli.terminal import Refusal, cell_text, echo, error_text, print_table

if TYPE_CHECKING:
    from http.client import HTTPResponse

URL: Final = "http://127.0.0.1:8080"
_PROBLEM: Final = "application/problem+json"
_WHERE: Final = "whose port --http-port sets and --announce json shows as http"
_PATIENCE_S: Final = 60.0
_MOST_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 1024 * 1024
_PAGE: Final = 500
_COMPLETABLE: Final = re.compile(r"[\w./+%-]+")
"""Names that are one word in every shell."""


class Api:
    """The HTTP API at a URL; the first request asks for its version. as_json: whether answers are printed as JSON."""

    def __init__(self, url: str, token: str | None, *, as_json: bool = False) -> None:
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.netloc or parts.path.strip("/") or parts.query or "@" in parts.netloc:
            raise click.UsageError(f"{url}: a URL is http://HOST:PORT, as serve announces it")
        self._where = parts.netloc
        self.token = token
        self.as_json = as_json
        self._is_known = False

    def changed(self, option: str, value: Any) -> Api:
        """Returns this with another value of an option of `segstore ctl`."""
        url = value if option == "url" else self.url
        token = read_token(value) if option == "token_file" else self.token
        return Api(url, token, as_json=value if option == "as_json" else self.as_json)

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer's JSON; None for none. body: sent as JSON. Raises ClickException for a refusal."""
        with self._answered(method, path, body, query) as answer:
            return self._json(self._read(answer, _MOST_BYTES + 1), f"{method} /v1/{path}")

    def download(self, path: str, file: BinaryIO, **query: Any) -> None:
        """Copies an answer's body to a file. Raises ClickException, and OSError for the file."""
        with self._answered("GET", path, None, query) as answer:
            while data := self._read(answer, _READ_BYTES):
                file.write(data)

    def call(self, method: str, path: str, body: Any) -> None:
        """Prints the JSON of an answer; another body is written to standard output as it is."""
        with self._answered(method, path, body, {}) as answer:
            is_json = (answer.getheader("content-type") or "").startswith("application/json")
            data = self._read(answer, _MOST_BYTES + 1)
        if is_json:
            echo(json.dumps(self._json(data, f"{method} /v1/{path}")))
        else:
            sys.stdout.buffer.write(data)

    def pages(self, path: str, rows: str, **query: Any) -> Iterator[Any]:
        """Yields the entries of all pages of a list."""
        after: str | None = None
        while True:
            page = self.ask("GET", path, limit=_PAGE, after=after, **query)
            yield from page[rows]
            if (after := page.get("next")) is None:
                return

    def _read(self, answer: HTTPResponse, size: int) -> bytes:
        from http.client import HTTPException

        try:
            return answer.read(size)
        except (OSError, HTTPException) as error:
            raise click.ClickException(f"{self.url}: the answer has ended early: {error!r}") from error

    def _check_server(self) -> None:
        """Refuses another server, such as Pravega's REST API, which has paths of scopes, too; warns of a version."""
        if self._is_known:
            return
        self._is_known = True
        version = self.ask("GET", "version")
        if not isinstance(version, dict) or "segstore" not in version:
            raise click.ClickException(f"{self.url}: this is not the HTTP API, {_WHERE}")
        if version["segstore"] != __version__:
            theirs = cell_text(version["segstore"])
            echo(f"segstore: {self.url} has version {theirs}, this is {__version__}", err=True)

    @property
    def url(self) -> str:
        return f"http://{self._where}"

    @contextmanager
    def _answered(self, method: str, path: str, body: Any, query: Mapping[str, Any]) -> Iterator[HTTPResponse]:
        """Sends a request and gives the answer. Raises ClickException for a refusal, and without an answer."""
        from http.client import HTTPConnection, HTTPException
        from urllib.parse import urlencode

        self._check_server()
        data = None if body is None else json.dumps(body).encode()
        params = {name: str(value) for name, value in query.items() if value is not None}
        headers = {"content-type": "application/json"} if data is not None else {}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        connection = HTTPConnection(self._where, timeout=_PATIENCE_S)
        try:
            try:
                joint = "&" if "?" in path else "?"
                connection.request(method, f"/v1/{path}{joint}{urlencode(params)}", data, headers)
                answer = connection.getresponse()
                refusal = answer.read(_MOST_BYTES + 1) if answer.status >= 300 else b""
            except OSError as error:
                hint = "start the server with --http-port, or give its address with --url"
                raise click.ClickException(f"{self.url}: {error_text(error)}; {hint}") from error
            except (HTTPException, ValueError) as error:
                raise click.ClickException(f"{self.url}: this is no HTTP API: {error!r}") from error
            if answer.status >= 300:
                is_problem = (answer.getheader("content-type") or "").partition(";")[0] == _PROBLEM
                problem = self._json(refusal, f"{method} /v1/{path}") if is_problem else None
                if isinstance(problem, dict) and "detail" in problem:
                    raise Refusal(str(problem["detail"]))
                status = f"{self.url} answered {answer.status} {answer.reason}"
                raise click.ClickException(f"{status}: this is not the HTTP API, {_WHERE}")
            yield answer
        finally:
            connection.close()

    def _json(self, data: bytes, asked: str) -> Any:
        try:
            return json.loads(data) if data and len(data) <= _MOST_BYTES else None
        except (ValueError, RecursionError) as error:
            raise click.ClickException(f"{self.url}: the answer to {asked} is not JSON") from error

    def show(self, answer: Any, shown: str = "") -> None:
        """Prints an answer: as JSON, as a table of one of its lists, or as a line for each key.

        shown: the list and its columns, as "rules: name matched"; "+ readers: … + segments: …" prints the lines and
        below them tables.
        """
        lists, *tables = shown.split("+ ")
        if self.as_json:
            echo(json.dumps(answer))
        elif lists:
            self._print_list(answer, lists)
            _name_next(answer)
        else:
            names = [table.partition(":")[0] for table in tables]
            for name, value in (answer or {}).items():
                if name not in names:
                    echo(f"{name}: {cell_text(value)}")
            for name, table in zip(names, tables, strict=True):
                if answer[name]:
                    echo("")
                    self._print_list(answer, table)

    def _print_list(self, answer: Any, shown: str) -> None:
        rows, _, names = shown.partition(": ")
        columns = names.split()
        print_table(columns, (row if isinstance(row, dict) else {columns[0]: row} for row in answer[rows]))

    def show_texts(self, answer: Any, rows: str, text: Callable[[Any], str]) -> None:
        """Prints an answer: as JSON, or the lines of the text of each entry of the list `rows`."""
        if self.as_json:
            echo(json.dumps(answer))
            return
        for entry in answer[rows]:
            for line in text(entry).splitlines():
                echo(line)
        _name_next(answer)


def _name_next(answer: Any) -> None:
    """Prints how to get the next page, if any."""
    if answer.get("next") is not None:
        echo(f"segstore: there are more: --after {cell_text(answer['next'])}", err=True)


def completed(names: Callable[[Api, str], Sequence[str]]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes a name by asking the server, if it answers. names: those that it has, given what is typed so far."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        params = context.params
        while "token_file" not in params and context.parent is not None:
            context = context.parent
            params = context.params
        try:
            api = Api(params.get("url") or os.environ.get("SEGSTORE_URL", URL), read_token(params.get("token_file")))
            matching = [name for name in names(api, incomplete) if name.startswith(incomplete)]
        except (click.ClickException, OSError):
            return []
        return list(filter(_COMPLETABLE.fullmatch, matching))

    return complete


def quoted(name: str) -> str:
    """A name as a part of a path. Raises UsageError for an empty name, whose path would name another object."""
    from urllib.parse import quote

    if not name:
        raise click.UsageError("the name is empty", click.get_current_context(silent=True))
    return quote(name, safe="")


def read_token(path: Path | None) -> str | None:
    return None if path is None else path.read_bytes().removeprefix(BOM_UTF8).decode("ascii", "replace").strip()


pass_api: Final[Callable[..., Any]] = click.make_pass_decorator(Api)
