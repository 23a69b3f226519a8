"""The live page: nothing comes from outside, names are text; a browser shows what happens and does what is asked."""

import base64
import hashlib
import re
from pathlib import Path

import pytest

from segstore.server import MockSegmentStore
from segstore.server.control_api import ControlApi, Controlled
from segstore.server.control_api.app import application
from segstore.server.page import live_page
from segstore.wire import GetStreamSegmentInfo
from tests.browser import Chromium
from tests.server.control_api.support import asking, done, peer_of
from tests.server.support import append, create, set_up

HOSTILE = "<img src=x onerror=\"document.title='owned'\">\u202e\u0007"
SHOWN = "<img src=x onerror=\"document.title='owned'\">\\u{202e}\\u{7}"


PAGE = "".join(live_page()[:2])


def inside(kind: str) -> str:
    (found,) = re.findall(rf"<{kind}>(.*?)</{kind}>", PAGE, re.DOTALL)
    return str(found)


async def test_the_page_comes_with_a_policy_that_lets_nothing_in_but_what_is_inside() -> None:
    async with asking() as (_, http):
        answer = await http.get("/")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.text == PAGE
        for name, value in (
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
        ):
            assert answer.headers[name] == value
        rules = dict(each.strip().partition(" ")[::2] for each in answer.headers["content-security-policy"].split(";"))
        for kind in ("script", "style"):
            digest = base64.b64encode(hashlib.sha256(inside(kind).encode()).digest()).decode()
            assert rules[f"{kind}-src"] == f"'sha256-{digest}'"
        assert rules["connect-src"] == "'self'"
        assert {rules[each] for each in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {"'none'"}


def test_the_page_needs_nothing_from_outside_and_makes_no_elements_of_text() -> None:
    page, script = PAGE, inside("script")
    assert re.findall(r"(?:https?:)?//[\w.]+\.\w+|@import|url\(", page) == []
    links = re.findall(r'(?:src|href|action)="([^"]*)"', page)
    assert {link for link in links if not link.startswith("#")} == {"data:,", "/v1/openapi.json"}
    assert re.findall(r"\s(?:on\w+|style)=", page.replace(script, "")) == []
    for sink in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
        "srcdoc",
        "cookie",
    ):
        assert sink not in script


async def test_every_resource_that_the_script_asks_for_is_described() -> None:
    described = application("stores").openapi()["paths"]
    asked = re.findall(r'"(GET|POST|PUT|DELETE)", "([^"]+)"', inside("script"))
    assert len(set(asked)) >= 12
    for method, path in set(asked) - {("GET", "/v1/openapi.json")}:
        assert method.lower() in described[path], (method, path)


browser = pytest.mark.needs("chromium")


@browser
async def test_the_page_shows_that_the_store_is_gone_and_continues_when_it_is_back(chromium: Chromium) -> None:
    async with MockSegmentStore() as mock, chromium.page() as page:
        controlled = Controlled([mock.server], mock.server.faults)
        api = ControlApi(controlled, "127.0.0.1", 0)
        await api.start()
        await page.open(f"http://127.0.0.1:{api.address[1]}/")
        await page.until("document.querySelectorAll('#server dt').length > 4")
        assert await page.get("document.querySelector('#gone').hidden")
        await api.stop()
        await page.until("!document.querySelector('#gone').hidden && document.title === 'segstore: gone'")
        mock.store.create_segment("scope/new/0.#epoch.0", now_ms=0)
        again = ControlApi(Controlled([mock.server], mock.server.faults), "127.0.0.1", api.address[1])
        await again.start()
        try:
            await page.until("document.querySelector('#gone').hidden && document.title === 'segstore'")
            await page.until("document.querySelector('#segments').textContent.includes('scope/new/0')")
            light = await page.get("getComputedStyle(document.body).backgroundColor")
            dark = [{"name": "prefers-color-scheme", "value": "dark"}]
            await page.do("Emulation.setEmulatedMedia", features=dark)
            assert await page.get("getComputedStyle(document.body).backgroundColor") != light
        finally:
            await again.stop()


@browser
async def test_a_browser_takes_the_token_from_the_address_or_asks_for_it(tmp_path: Path, chromium: Chromium) -> None:
    token = "0123456789abcdef"
    file = tmp_path / "token"
    file.write_text(token)
    async with asking(http_token_file=file) as (mock, _), chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        await page.until("!document.querySelector('#token').hidden")
        assert await page.get("document.querySelectorAll('#server dt').length") == 0
        await page.type("#token input", "wrong, and not the token")
        await page.until("document.querySelector('#token input').value === ''")
        assert not await page.get("document.querySelector('#token').hidden")
        await page.type("#token input", token)
        await page.until("document.querySelector('#token').hidden")
        await page.until("document.querySelectorAll('#server dt').length > 4")
        await page.get("sessionStorage.clear()")

        await page.open("about:blank")
        await page.do("Page.navigate", url=f"{mock.http_url}/#token={token}")
        await page.until("document.querySelectorAll('#server dt').length > 4")
        assert await page.get("location.href + sessionStorage.length") == f"{mock.http_url}/1"
        assert await page.get("document.querySelector('#token').hidden")

        await page.get("sessionStorage.clear()")
        await page.open("about:blank")
        await page.do("Page.navigate", url=f"{mock.http_url}/#token=100%")
        await page.until("document.querySelector('#token')?.hidden === false")
        assert await page.get("location.href + sessionStorage.getItem('token')") == f"{mock.http_url}/100%"
        assert [complaint for complaint in page.complaints if "401" not in complaint] == []


@browser
async def test_the_page_never_scrolls_sideways_with_long_names_in_light_and_dark(chromium: Chromium) -> None:
    long = f"scope/{'wide' * 60}/0.#epoch.0"
    async with asking() as (mock, http), peer_of(mock) as peer, chromium.page() as page:
        mock.store.create_segment(long, now_ms=0)
        await peer.ask(create(), set_up(), append(1, b"x" * 500), GetStreamSegmentInfo(9, long, ""))
        await done(
            http, "POST", "/v1/faults", {"name": "n" * 255, "match": f'segment = "{long}"', "do": ["hold", "ok"]}
        )
        await done(http, "POST", "/v1/toxics", {"type": "latency", "name": "t" * 255, "latency": 1})
        number = (await done(http, "GET", "/v1/requests"))["requests"][0]["number"]
        await page.open(f"{mock.http_url}/?request={number}")
        await page.until("!!document.querySelector('#drawer .timeline')")
        await page.until("document.querySelector('#toxics tbody')?.innerText.includes('ttt')")
        widths = [(width, dark) for width in (400, 700, 1200) for dark in (False, True)]
        assert [await page.look(width, dark=dark) for width, dark in widths] == [0] * 6
        assert await page.get("drawer.scrollWidth - drawer.clientWidth") == 0
        await page.press("Escape")
        await page.until("!drawer.open")
        await page.click("#faults", "Edit")
        await page.click("#toxics", "New toxic")
        await page.until("!document.querySelector('#toxics form').hidden")
        assert [await page.look(width, dark=dark) for width, dark in widths] == [0] * 6
        assert page.complaints == []


@browser
async def test_a_server_that_lists_its_capabilities_shows_only_the_panels_that_it_serves(chromium: Chromium) -> None:
    panels = "[...panels].filter(([, each]) => !each.root.hidden && !each.item.hidden).map(([id]) => id)"
    async with asking() as (mock, _), chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        await page.until("document.querySelectorAll('#server dt').length > 4")
        everything = await page.get(panels)
        assert {"server", "requests", "faults", "toxics", "segments"} < set(everything)
        able = "[can('requests'), can('send'), can(null)]"
        some, can = await page.get(f"knowCapabilities(['requests', 'faults']); [{panels}, {able}]")
        assert some == ["server", "requests", "faults", "connections"]
        assert can == [True, False, True]
        await page.until(f"{panels}.length === {len(everything)}")
