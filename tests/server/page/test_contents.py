"""The panels of streams, reader groups and tables in a browser: chosen by the keyboard, names and events as text."""

import json
from collections.abc import AsyncIterator

import pytest

from segstore.client import connect
from segstore.server.cluster import MockCluster
from segstore.server.controller import StreamConfig
from tests.browser import Chromium, Page
from tests.server.control_api.support import client_of, done

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.usefixtures("grpc_runs")]
HOSTILE = "<img src=x onerror=\"document.title='owned'\">\u202e"
SHOWN = "<img src=x onerror=\"document.title='owned'\">\\u{202e}"
EVENT = "<img src=x onerror=\"document.title='owned'\">"
STREAM = "/v1/streams/shop/orders"


@pytest.fixture
async def mock() -> AsyncIterator[MockCluster]:
    """A cluster whose stream `shop/orders` has been scaled, with events, a transaction and a table."""
    async with MockCluster(stores=2, http_port=0) as mock, client_of(mock) as http:
        mock.controller.scopes.create("_system")
        mock.controller.scopes.create("shop")
        await mock.controller.create_stream("shop", "orders", StreamConfig(tags=(HOSTILE,)))
        await done(http, "POST", f"{STREAM}/scale", {"segments": 3})
        events = [{"text": EVENT}, {"json": {"order": 1}}, {"base64": "/wA="}]
        await done(http, "POST", f"{STREAM}/events", {"events": events})
        begun = await done(http, "POST", f"{STREAM}/transactions", {"lease_ms": 600_000})
        await done(http, "POST", f"{STREAM}/transactions/{begun['id']}/events", {"events": [{"text": "in it"}]})
        await done(http, "PUT", "/v1/tables/shop/prices", {"primary_key_bytes": 3})
        entries = [{"key": {"text": f"<{number}>"}, "value": {"json": number}} for number in range(60)]
        fitting = [entry for entry in entries if len(entry["key"]["text"]) == 3]
        await done(http, "POST", "/v1/tables/shop/prices/entries", {"entries": fitting})
        yield mock


def rows(panel: str, table: str) -> str:
    """The expression for the texts of a table's rows."""
    region = f"#{panel} [aria-label={json.dumps(table)}] tbody tr"
    return f"[...document.querySelectorAll({json.dumps(region)})].map((row) => row.innerText)"


async def choose(page: Page, panel: str, name: str) -> None:
    """Opens a panel and chooses a thing in its list, by the keyboard."""
    found = f"[...document.querySelectorAll('#{panel} tbody button')].find((each) => each.textContent === '{name}')"
    await page.get(f"document.getElementById('{panel}').open = true")
    await page.until(f"Boolean({found})")
    await page.get(f"{found}.focus()")
    await page.press("Enter", "\r")
    await page.until(
        f"document.activeElement.tagName === 'H3' && document.activeElement.textContent.endsWith('/{name}')"
    )


async def test_a_stream_is_shown_with_its_history_its_last_events_and_transactions(
    mock: MockCluster, chromium: Chromium
) -> None:
    async with chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        await choose(page, "streams", "orders")
        await page.until("document.querySelectorAll('#streams .picture span').length === 4")
        assert await page.get("document.querySelectorAll('#streams .picture .open').length") == 3
        segments = await page.get(rows("streams", "Segments by epoch"))
        assert segments[0].split("\t")[:4] == ["0.#epoch.0", "0", "0.0000 to 1.0000", "sealed"]
        assert len(segments) == 4
        tail = "\n".join(await page.until(f"{rows('streams', 'The last events')}"))
        assert EVENT in tail
        assert '{ "order": 1 }' in tail
        assert "ff00" in tail
        (transaction,) = await page.get(rows("streams", "Transactions that have not ended"))
        assert transaction.split("\t")[1] == "OPEN"
        assert transaction.split("\t")[4] == "13"
        assert SHOWN in await page.get("document.querySelector('#streams .detail').innerText")
        assert [await page.look(400, dark=True), await page.look(1280)] == [0, 0]

        # the events of one segment, and back; an epoch from which the history is drawn
        await page.get("document.querySelector('#streams [aria-label=\"Segments by epoch\"] button').focus()")
        await page.press("Enter", "\r")
        await page.until(f"{rows('streams', 'The last events')}.length === 0")
        await page.get(
            "[...document.querySelectorAll('#streams button')].find((e) => e.innerText === 'All segments').click()"
        )
        await page.until(f"{rows('streams', 'The last events')}.length === 3")
        await page.type("#streams input[name=epoch]", "1")
        await page.until("document.querySelectorAll('#streams .picture span').length === 3")
        await page.fill("#streams input[name=epoch]", "99")
        await page.until("document.querySelector('#streams .detail .note').textContent === 'Epochs 1 to 1.'")
        assert float(await page.get("document.querySelector('#streams .picture span').clientWidth")) > 0

        await page.get("[...document.querySelectorAll('#streams .heading button')][0].focus()")
        await page.press("Enter", "\r")
        await page.until("document.querySelector('#streams .detail').hidden")
        assert await page.get("document.activeElement.textContent") == "orders"
        assert await page.get("document.querySelectorAll('img').length") == 0
        assert await page.get("document.title") == "segstore"
        assert page.complaints == []


async def test_a_group_is_shown_with_its_readers_and_their_lag(mock: MockCluster, chromium: Chromium) -> None:
    async with (
        chromium.page() as page,
        connect(mock.controller_uri) as pravega,
        pravega.reader_group("shop", "billing", streams=["orders"], refresh_ms=50) as group,
        group.reader("<b>one</b>"),
        group.reader("two"),
    ):
        await page.open(f"{mock.http_url}/")
        await choose(page, "groups", "billing")
        readers = await page.until(f"{rows('groups', 'Readers that are online')}")
        assert [reader.split("\t")[0] for reader in readers] == ["<b>one</b>", "two"]
        segments = await page.until(f"{rows('groups', 'Segments of the group')}")
        assert sum(int(segment.split("\t")[4].replace(",", "")) for segment in segments) > 0
        assert "shop/orders" in await page.get("document.querySelector('#groups .detail dl').innerText")
        assert page.complaints == []


@pytest.mark.needs("npm's package axe-core")
async def test_axe_finds_nothing_on_the_page_with_all_panels_and_forms_open(
    mock: MockCluster, chromium: Chromium
) -> None:
    async with client_of(mock) as http, chromium.page() as page:
        await done(http, "POST", "/v1/faults", {"match": "type = READ_SEGMENT", "do": "hold", "name": "held"})
        await done(http, "POST", "/v1/faults/held/disable")
        await done(http, "POST", "/v1/recordings", {"name": "run"})
        await page.open(f"{mock.http_url}/")
        await page.until(f"{rows('recordings', 'Recordings')}.length === 1")
        await choose(page, "tables", "prices")
        await choose(page, "streams", "orders")
        await page.until("document.querySelectorAll('#streams .picture span').length === 4")
        await page.click("#faults", "New rule")
        await page.click("#toxics", "New toxic")
        await page.until("!ruleForm.root.hidden && !toxicForm.root.hidden")
        for width, dark in ((1280, False), (400, True)):
            await page.look(width, dark=dark)
            assert await page.violations() == []
        await page.get("document.querySelector('#requests tbody .link').click()")
        await page.until("!!document.querySelector('#drawer .timeline')")
        assert await page.violations() == []
