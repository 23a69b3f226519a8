"""Lists of the controller are read page by page, to the one without names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from segstore.client.controller import Controller
from segstore.client.controller_channels import Answer, ControllerChannels
from segstore.client.errors import NoSuchStream
from segstore.client.pool import Endpoint
from segstore.wire.controller_api import messages as m


class Paged:
    """Answers with one page after another, and keeps what it was asked."""

    def __init__(self, *pages: Any) -> None:
        self._pages = list(pages)
        self.asked: list[tuple[str, str, str]] = []

    async def ask(self, method: str, request: Any) -> Answer:
        scope = "" if isinstance(request, m.ScopesRequest) else request.scope.scope
        self.asked.append((method, scope, request.continuationToken.token))
        return Answer(self._pages.pop(0), Endpoint("127.0.0.1", 9090))

    async def call(self, method: str, request: Any) -> Any:
        return (await self.ask(method, request)).message


def token(text: str) -> Any:
    return m.ContinuationToken(token=text)


def scopes(names: list[str], after: str) -> Any:
    return m.ScopesResponse(scopes=names, continuationToken=token(after))


def streams(names: list[str], after: str) -> Any:
    named = [m.StreamInfo(scope="a", stream=name) for name in names]
    return m.StreamsInScopeResponse(streams=named, continuationToken=token(after))


def tables(names: list[str], after: str) -> Any:
    named = [m.KeyValueTableInfo(scope="a", kvtName=name) for name in names]
    return m.KVTablesInScopeResponse(kvtables=named, continuationToken=token(after))


@pytest.mark.parametrize(
    ("page", "ask", "method", "scope"),
    [
        (scopes, lambda controller: controller.list_scopes(), "listScopes", ""),
        (streams, lambda controller: controller.list_streams("a"), "listStreamsInScope", "a"),
        (tables, lambda controller: controller.list_tables("a"), "listKeyValueTablesInScope", "a"),
    ],
)
async def test_each_page_is_asked_for_with_the_token_of_the_one_before(
    page: Callable[[list[str], str], Any], ask: Callable[[Controller], AsyncIterator[str]], method: str, scope: str
) -> None:
    paged = Paged(page(["x", "y"], "1"), page(["z"], "2"), page([], "3"))
    assert [name async for name in ask(Controller(cast("ControllerChannels", paged)))] == ["x", "y", "z"]
    assert paged.asked == [(method, scope, ""), (method, scope, "1"), (method, scope, "2")]


async def test_a_list_of_a_scope_that_is_not_there_raises() -> None:
    missing = m.StreamsInScopeResponse(status=m.StreamsInScopeResponse.SCOPE_NOT_FOUND)
    controller = Controller(cast("ControllerChannels", Paged(missing)))
    with pytest.raises(NoSuchStream, match="scope a: the controller says SCOPE_NOT_FOUND") as found:
        await anext(controller.list_streams("a"))
    assert found.value.endpoint == "127.0.0.1:9090"
