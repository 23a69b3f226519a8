"""The panel of recordings in a browser, of a server and of a tap: start, stop, download, delete."""

from pathlib import Path

import pytest

from segstore.traces import TraceFile
from tests.browser import Chromium, Page
from tests.server.control_api.support import asking, done, peer_of
from tests.server.support import append, create, set_up, until

pytestmark = pytest.mark.needs("chromium")
SAID = "document.querySelector('#said').textContent"
ROW = "document.querySelector('#recordings tbody')?.innerText"


async def start(page: Page, name: str) -> None:
    await page.fill("#recordings input[name=name]", name)
    await page.click("#recordings", "Start recording")
    await page.until(f"{SAID} === '{name} was started.'")


async def downloaded(page: Page, folder: Path, label: str, file: str) -> Path:
    """Presses a button that downloads, and returns the file when it is complete."""
    await page.do("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    await page.click("#recordings", label)
    await page.until(f"{SAID} === '{file} was downloaded.'")
    await until(lambda: (folder / file).exists() and (folder / file).stat().st_size > 0)
    return folder / file


def requests_in(file: Path) -> list[int]:
    """The type codes of the requests that a trace has."""
    with TraceFile(file) as trace:
        return [
            int.from_bytes(record.data[:4], signed=True)
            for record in trace.records()
            if record.kind.name == "FRAME" and record.direction == 0
        ]


async def test_a_recording_has_the_traffic_between_start_and_stop_and_is_deleted(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with asking() as (mock, http), peer_of(mock) as peer, chromium.page() as page:
        await peer.ask(create())
        await page.open(f"{mock.http_url}/")
        await start(page, "run one")
        await peer.ask(set_up(), append(1))
        await page.click("#recordings tbody", "Stop")
        await page.until(f"{ROW}.includes('stopped')")
        await peer.ask(append(2))
        found = requests_in(await downloaded(page, tmp_path, "Download", "run one.wtrace"))
        assert found == [set_up().code, append(1).code]
        await page.fill("#recordings select[name=form]", "jsonl")
        latest = requests_in(await downloaded(page, tmp_path, "Download latest traffic", "segstore.jsonl"))
        assert latest[-3:] == [set_up().code, append(1).code, append(2).code]
        await page.click("#recordings tbody", "Delete")
        await page.until(f"{SAID} === 'run one was deleted.' && {ROW} === ''")
        assert await done(http, "GET", "/v1/recordings") == {"recordings": []}
        assert page.complaints == []


async def test_a_recording_that_ends_at_its_limit_gives_the_reason(chromium: Chromium) -> None:
    async with asking() as (mock, http), peer_of(mock) as peer, chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        await done(http, "POST", "/v1/recordings", {"name": "small", "max_bytes": 200})
        await peer.ask(create(), set_up(), append(1, bytes(1000)))
        await page.until(f"{ROW}?.includes('it ended at its limit of 200 bytes; later traffic is missing')")
        assert not await page.get("document.querySelector('#recordings tbody button').checkVisibility()")
        await page.fill("#recordings input[name=limit]", "513")
        await page.click("#recordings", "Start recording")
        assert "536870912" in await page.until(f"document.querySelector('#said.problem') && {SAID}")
