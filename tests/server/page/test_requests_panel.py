"""The list of requests and the drawer, in a browser: what is shown, by mouse and by keyboard, and what is done."""

import json
from typing import Any

import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.wire import AppendBlock, AppendBlockEnd, GetStreamSegmentInfo
from tests.browser import Chromium, Page
from tests.server.control_api.support import asking, asking_cluster, client_of, done, peer_of
from tests.server.support import SEGMENT, WRITER, create, event, set_up

pytestmark = pytest.mark.needs("chromium")

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
DRAWER = "document.querySelector('#drawer')"
SAID = "document.querySelector('#drawer-said').textContent"
FOCUSED = "document.activeElement.textContent"
ROWS = "document.querySelectorAll('#requests tbody tr').length"


def stored(*events: bytes) -> tuple[AppendBlock, AppendBlockEnd]:
    data = b"".join(map(event, events))
    return AppendBlock(WRITER, data), AppendBlockEnd(WRITER, len(data), b"", len(events), len(events), 9)


async def number_of(http: httpx.AsyncClient, match: str) -> int:
    found: int = (await done(http, "GET", "/v1/requests", match=match, limit=1))["requests"][0]["number"]
    return found


async def opened(page: Page, number: int) -> str:
    """Waits for the drawer of a request; its text."""
    await page.until(f"{DRAWER}.open && opened === {number} && !!{DRAWER}.querySelector('.timeline')")
    text: str = await page.get(f"{DRAWER}.innerText")
    return text


def unexpected(page: Page, *statuses: int) -> list[str]:
    return [
        complaint for complaint in page.complaints if not any(f"status of {status}" in complaint for status in statuses)
    ]


async def test_a_row_opens_a_request_in_detail_and_nothing_hostile_runs(chromium: Chromium) -> None:
    events = json.dumps({"order": HOSTILE}).encode(), HOSTILE.encode(), b"\xff\x00\xfe"
    async with asking() as (mock, http), peer_of(mock) as peer, chromium.page() as page:
        block, end = stored(*events)
        await peer.ask(create(), set_up())
        peer.send(block)
        await peer.ask(end, GetStreamSegmentInfo(8, HOSTILE, ""))
        await page.open(f"{mock.http_url}/")
        await page.until(f"{ROWS} > 4")
        append, lost = await number_of(http, "type = APPEND_BLOCK_END"), await number_of(http, "failure")

        await page.get(
            f"[...document.querySelectorAll('#requests tbody tr')].find((e) => e.key === '{append}').click()"
        )
        text = await opened(page, append)
        for expected in (SEGMENT, str(WRITER), "DATA_APPENDED after", "applied", "num_events\t3", "→ SETUP_APPEND"):
            assert expected in text
        payloads = f"[...{DRAWER}.querySelectorAll('.payload pre')].map((each) => each.textContent)"
        assert await page.get(payloads) == [
            json.dumps({"order": HOSTILE}, indent=2),
            HOSTILE,
            f"0000  {'ff 00 fe'.ljust(47)}  ...",
        ]
        buttons = f"[...{DRAWER}.querySelectorAll('.payload button')]"
        await page.get(f"{buttons}.filter((each) => each.textContent === 'Text').map((each) => each.click())")
        assert await page.get(payloads) == [events[0].decode(), HOSTILE, "\ufffd\\u{0}\ufffd"]
        await page.click("#drawer .payload", "Hex")
        assert (await page.get(payloads))[0].startswith("0000  7b 22 6f 72 64 65 72 22")

        await page.click("#drawer", str(lost))
        assert HOSTILE in await opened(page, lost)
        assert await page.get("document.querySelectorAll('img').length") == 0
        assert await page.get("document.title") == "segstore"
        assert page.complaints == []


async def test_the_keyboard_reaches_everything_and_the_focus_stays_in_the_drawer(chromium: Chromium) -> None:
    async with asking() as (mock, _), peer_of(mock) as peer, chromium.page() as page:
        await peer.ask(create(), set_up())
        await page.open(f"{mock.http_url}/")
        await page.until(f"{ROWS} === 3")
        newest, middle, oldest = await page.get("listed()")
        await page.press("/", "/")
        assert await page.get("document.activeElement === filterInput && filterInput.value === ''")
        await page.get("filterInput.blur()")
        for key, expected in (("j", newest), ("j", middle), ("ArrowDown", oldest), ("ArrowUp", middle), ("k", newest)):
            await page.press(key)
            assert await page.get(FOCUSED) == str(expected)
        assert await page.get("openers().map((each) => each.tabIndex)") == [-1, -1, -1]
        await page.press("j")
        await page.press("Enter", "\r")
        await opened(page, middle)
        assert await page.get(f"{DRAWER}.matches(':modal')")
        for _ in range(30):
            await page.press("Tab")
            assert await page.get(
                f"[...{DRAWER}.querySelectorAll('*'), document.body].includes(document.activeElement)"
            )
        await page.press("j", "j")
        await opened(page, oldest)
        await page.press("k", "k")
        await opened(page, middle)
        await page.press("j", "j")
        await opened(page, oldest)
        await page.press("Escape")
        await page.until(f"!{DRAWER}.open")
        await page.until(f"{FOCUSED} === '{oldest}'")
        await page.press("p", "p")
        assert await page.get("paused.checked")
        await peer.ask(GetStreamSegmentInfo(9, SEGMENT, ""))
        await page.press("p", "p")
        await page.until(f"{ROWS} === 4")
        names = "[...document.querySelectorAll('dialog, [role=region], main details')].every((each) => each.ariaLabel"
        names += " || each.getAttribute('aria-labelledby') || each.querySelector('summary'))"
        assert await page.get(names)
        assert page.complaints == []


async def test_the_filter_is_in_the_address_and_its_errors_are_pointed_at(chromium: Chromium) -> None:
    async with asking() as (mock, _), peer_of(mock) as peer, chromium.page() as page:
        await peer.ask(create(), set_up())
        await page.open(f"{mock.http_url}/?match=type+%3D+SETUP_APPEND")
        await page.until(f"{ROWS} === 1")
        assert await page.get("filterInput.value") == "type = SETUP_APPEND"
        await page.fill("#requests input[name=filter]", "")
        await page.type("#requests input[name=filter]", "type = and")
        await page.until("!filterCaret.hidden")
        assert await page.get("filterCaret.textContent") == "type = and\n       ^"
        assert (await page.get("document.querySelector('#requests-note').textContent")).startswith("column 8: ")
        assert await page.get("filterInput.getAttribute('aria-invalid')") == "true"
        assert await page.get("new URLSearchParams(location.search).get('match')") == "type = and"
        await page.get("history.back()")
        await page.until("filterInput.value === 'type = SETUP_APPEND' && filterCaret.hidden")
        await page.until("document.querySelector('#requests-note').textContent === ''")
        await page.click("#requests", "Clear")
        await page.until(f"{ROWS} === 3")
        assert await page.get("location.search") == ""
        await page.get(f"filter('segment = \"{'x' * 5_000}\"')")
        await page.until(f"{ROWS} === 0")
        assert await page.get("location.search") == ""
        assert unexpected(page, 422) == []


async def test_a_link_to_a_request_opens_it_and_a_lost_one_is_explained(chromium: Chromium) -> None:
    async with asking() as (mock, http), peer_of(mock) as peer, chromium.page() as page:
        await peer.ask(create())
        number = await number_of(http, "type = CREATE_SEGMENT")
        await page.open(f"{mock.http_url}/?request={number}")
        assert "CREATE_SEGMENT" in await opened(page, number)
        await page.click("#drawer", SEGMENT)
        await page.until(f"!{DRAWER}.open && match === 'segment = \"{SEGMENT}\"'")
        await page.until(f"{ROWS} === 1")
        await page.open(f"{mock.http_url}/?request=7777")
        await page.until("document.querySelector('#drawer-said').textContent.includes('no request 7777')")
        assert unexpected(page, 404) == []


async def test_a_request_is_copied_sent_again_and_made_a_rule(chromium: Chromium) -> None:
    async with asking() as (mock, http), peer_of(mock) as peer, chromium.page() as page:
        await peer.ask(create())
        number = await number_of(http, "type = CREATE_SEGMENT")
        await page.open(f"{mock.http_url}/?request={number}")
        await opened(page, number)
        await page.click("#drawer", "Copy as fixture lines")
        await page.until("document.querySelector('#drawer-said').textContent !== ''")
        lines = (await page.get(f"{DRAWER}.querySelector('textarea').value")).splitlines()
        assert lines == (await done(http, "GET", f"/v1/requests/{number}"))["fixture"]

        await page.click("#drawer", "Send again")
        await page.until(f"{SAID} === 'Sent; the reply is SEGMENT_ALREADY_EXISTS.'")
        assert await number_of(http, "type = CREATE_SEGMENT") > number

        await page.click("#drawer", "Make a rule of this")
        await page.until("!ruleForm.root.hidden && document.activeElement.name === 'match'")
        assert not await page.get(f"{DRAWER}.open")
        await page.get("ruleForm.root.requestSubmit()")
        await page.until("document.querySelectorAll('#faults tbody tr').length === 1")
        (rule,) = (tally.rule for tally in mock.faults.tallies())
        assert rule.match == f'type = CREATE_SEGMENT and segment = "{SEGMENT}"'
        await peer.ask(create())
        assert mock.faults.tallies()[0].fired == 1
        assert page.complaints == []


async def test_a_rule_of_a_request_of_a_transaction_matches_the_next_transaction_too(chromium: Chromium) -> None:
    once = "0" * 32
    async with asking() as (mock, _), chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        for segments, match in (
            ([f"a/b/0.#epoch.0#transaction.{once}"], ' and stream = "a/b"'),
            ([f"b/7#transient.{once}.{once}"], ' and stream = "b"'),
            ([f"other#transaction.{once}"], ""),
            (["a/b/0.#epoch.0", f"a/b/0.#epoch.0#transaction.{once}"], ' and segment = "a/b/0.#epoch.0"'),
            ([], ""),
        ):
            it = {"kind": "frame", "type": "SEAL_SEGMENT", "segments": segments, "streams": []}
            assert await page.get(f"filterOf({json.dumps(it)})") == f"type = SEAL_SEGMENT{match}"


async def test_after_a_restart_no_request_of_the_run_before_is_shown_or_sent(chromium: Chromium) -> None:
    async with chromium.page() as page:
        async with asking() as (mock, http), peer_of(mock) as peer:
            await peer.ask(create())
            number, port = await number_of(http, "type = CREATE_SEGMENT"), int(mock.http_url.rpartition(":")[2])
            await page.open(f"{mock.http_url}/")
            await page.until(f"{ROWS} === 2")
            await page.press("p", "p")
            await page.get(f"openRequest({number})")
            await opened(page, number)
            assert await page.get("!byId('gone').checkVisibility()")
        await page.until(f"byId('gone').checkVisibility() && {DRAWER}.contains(byId('gone'))")
        await page.until("!looking && (looking = true)")  # then the page does not look by itself
        async with MockSegmentStore(http_port=port) as mock, client_of(mock) as http, peer_of(mock) as peer:
            await peer.ask(create())
            assert await number_of(http, "type = CREATE_SEGMENT") == number
            await page.click("#drawer", "Send again")
            await page.until(f"!{DRAWER}.open && {ROWS} === 0 && location.search === ''")
            assert await page.get("byId('said').textContent") == "The server was restarted."
            assert len((await done(http, "GET", "/v1/requests"))["requests"]) == 2
            await page.get("looking = false; lookSoon(0)")
            await page.until(f"{ROWS} === 2 && !byId('gone').checkVisibility()")
        assert all("ERR_CONNECTION" in complaint for complaint in page.complaints)


@pytest.mark.usefixtures("grpc_runs")
async def test_calls_of_the_controller_are_shown_with_their_messages(chromium: Chromium) -> None:
    async with asking_cluster() as (mock, http), chromium.page() as page:
        calls = await _call(mock, http)
        await page.open(f"{mock.http_url}/?request={calls['number']}")
        text = await opened(page, calls["number"])
        assert "createScope" in text
        assert '"scope": "shop"' in text
        assert "Scope\nshop" in text
        assert "createScope\tshop\t" in await page.until("document.querySelector('#requests tbody')?.innerText")
        shown = "[...drawer.querySelectorAll('button')].filter((each) => each.checkVisibility())"
        assert "Send again" not in await page.get(f"{shown}.map((each) => each.textContent)")
        await page.click("#drawer", "Make a rule of this")
        await page.until("!ruleForm.root.hidden")
        assert await page.get("ruleForm.fields.get().match") == 'rpc = createScope and scope = "shop"'
        assert page.complaints == []


async def _call(mock: Any, http: httpx.AsyncClient) -> dict[str, Any]:
    import segstore.client

    async with segstore.client.connect(f"tcp://{mock.controller_uri}") as pravega:
        await pravega.controller.create_scope("shop")
    found: dict[str, Any] = (await done(http, "GET", "/v1/requests", match="rpc = createScope"))["requests"][0]
    return found
