"""The page in a browser: nothing comes from outside, names are text; what is shown, by mouse and by keyboard."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from uuid import UUID

import pytest

from segstore.view.files import html as page_of
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    Command,
    CreateSegment,
    DataAppended,
    Event,
    GetStreamSegmentInfo,
    Hello,
    NoSuchSegment,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
    StreamSegmentInfo,
    encode,
)
from segstore.wire.history import RULES
from segstore.wire.trace import Direction, Record, RecordKind, event_data
from tests.browser import Chromium, Page
from tests.view.samples import FIXTURES, call, saved, shown

needs_chromium = pytest.mark.needs("chromium")
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">\u202e\u0007"
SEEN = "</script><img src=x onerror=\"document.title='owned'\">\\u{202e}\\u{7}"
WRITER = UUID(int=7)
SEGMENT = "scope/stream/0.#epoch.0"


def dialogue(segment: str = SEGMENT, payload: bytes = b'{"order": [1, 2]}') -> list[Record]:
    """A segment is created, three events are appended to it, and a read of another one fails."""
    events = [payload, b"two", b"\x00\xff"]
    data = b"".join(Event.code.to_bytes(4, "big") + len(event).to_bytes(4, "big") + event for event in events)
    said: list[tuple[int, Command]] = [
        (0, Hello(17, 5)),
        (1, Hello(17, 5)),
        (0, CreateSegment(1, segment, 0, 0, "secret-token")),
        (1, SegmentCreated(1, segment)),
        (0, SetupAppend(1 << 32, WRITER, segment, "secret-token")),
        (1, AppendSetup(1 << 32, segment, WRITER, -(2**63))),
        (0, AppendBlock(WRITER, data)),
        (0, AppendBlockEnd(WRITER, len(data), b"", 3, 3, 1 << 32 | 1)),
        (1, DataAppended(1 << 32 | 1, WRITER, 3, -(2**63), len(data))),
        (0, ReadSegment(segment + "x", 0, 10, "", 2 << 32)),
        (1, NoSuchSegment(2 << 32, segment + "x", "", 0)),
        (0, ReadSegment(segment, 0, 10, "", 2 << 32 | 1)),
    ]
    frames = [
        Record(10**18 + 1000 * at, 1, Direction(way), RecordKind.FRAME, encode(command))
        for at, (way, command) in enumerate(said, 1)
    ]
    opened = Record(10**18, 1, Direction.REQUEST, RecordKind.OPEN, event_data(peer=segment))
    closed = Record(10**18 + 20_000, 1, Direction.REPLY, RecordKind.CLOSE, event_data(reason=segment))
    return [opened, *frames, closed]


def text_of(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)}).innerText"


def key(name: str) -> str:
    return call("(key) => page.views[0].canvas.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))", name)


async def opened(browser: Page, at: int, view: int = 0) -> str:
    """Opens a record, from 0; the text of the drawer."""
    await browser.get(call("async (view, at) => { page.views[view].open(at); }", view, at))
    await browser.until(f"document.querySelector('#drawer-title')?.textContent.includes('{at + 1}: ')")
    return str(await browser.get(text_of("#drawer")))


class _Elements(html.parser.HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_the_page_loads_nothing_and_its_policy_allows_only_what_is_inside() -> None:
    page = "".join(page_of([{"tables": b"abc", "bytes-0": b"def"}]))
    elements = _Elements(page).found
    links = [value for _, attributes in elements for name, value in attributes.items() if name in ("src", "href")]
    assert links == ["data:,"]
    assert not any(name.startswith("on") or name == "style" for _, attributes in elements for name in attributes)
    assert re.findall(r"https?://|@import|url\(", page) == []
    for sink in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(", "srcdoc"):
        assert sink not in page
    (policy,) = (attributes["content"] for tag, attributes in elements if tag == "meta" and "http-equiv" in attributes)
    rules = dict(each.strip().partition(" ")[::2] for each in str(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert {kind: rules[kind].startswith("'sha256-") for kind in ("script-src", "style-src")} == {
        "script-src": True,
        "style-src": True,
    }
    blocks = [str(attributes["id"]) for tag, attributes in elements if attributes.get("type") == "text/plain"]
    assert blocks == ["0-tables", "0-bytes-0"]


@needs_chromium
async def test_names_of_a_trace_are_text_wherever_they_are_shown(tmp_path: Path, chromium: Chromium) -> None:
    records = dialogue(HOSTILE, HOSTILE.encode())
    trace = saved(tmp_path, records, "<img src=x onerror=alert(1)>.wtrace")
    async with shown(chromium, tmp_path, trace, against=saved(tmp_path, dialogue(), "other.wtrace")) as browser:
        for at in range(len(records)):
            assert "'undefined'" not in await opened(browser, at)
        assert SEEN[:20] in await opened(browser, 7)
        await browser.get("page.filter('segment ~ </script>*')")
        assert await browser.get("document.querySelectorAll('img').length") == 0
        assert await browser.get("document.title") == "segstore: <img src=x onerror=alert(1)>.wtrace and other.wtrace"
        assert SEEN in await browser.get("document.body.textContent")


@needs_chromium
async def test_a_read_that_its_client_gave_up_is_no_problem(tmp_path: Path, chromium: Chromium) -> None:
    read = Record(1, 1, Direction.REQUEST, RecordKind.FRAME, encode(ReadSegment("a/b/0", 0, 100, "", 7)))
    for by, problems in ((Direction.REQUEST, "0 problems"), (Direction.REPLY, "1 problem")):
        trace = saved(tmp_path, [read, Record(2, 1, by, RecordKind.CLOSE, b"{}")])
        async with shown(chromium, tmp_path, trace) as browser:
            assert await browser.get(text_of("#problem-count")) == problems
            assert ("given up" in await opened(browser, 0)) is (by is Direction.REQUEST)


@needs_chromium
async def test_a_record_is_opened_with_its_bytes_payload_events_and_state(tmp_path: Path, chromium: Chromium) -> None:
    async with shown(chromium, tmp_path, saved(tmp_path, dialogue())) as browser:
        assert "14 records · 1 connection" in await browser.get(text_of(".facts"))
        assert await browser.get(text_of("#problem-count")) == "2 problems"
        block = await opened(browser, 7)
        said = "3 events, numbers 1 to 3."
        for each in (
            "8: APPEND_BLOCK",
            said,
            '"order": [',
            "Block end: APPEND_BLOCK_END (9)",
            "00 ff",
            "data[1].length",
        ):
            assert each in block, each
        reply = await opened(browser, 9)
        for each in (
            "Latency\n1 µs after its request",
            "flow 1, sequence 1",
            "Request: APPEND_BLOCK_END (9)",
            "last event number acknowledged\n3 since record 10",
            "length\n46 since record 10",
            "set up on connections\n1",
        ):
            assert each in reply, each
        assert "length\n0 since record 5" in await opened(browser, 8)
        assert "secret-token" not in await opened(browser, 3)
        assert "<12 characters>" in await opened(browser, 3)
        assert "Problem\nfailure" in await opened(browser, 11)
        assert "Problem\nno reply before its connection ended" in await opened(browser, 12)
        assert "reason" in await opened(browser, 13)
        await browser.get("drawer.querySelector('.links button').click()")
        await browser.until("location.hash === '#record=13'")


@needs_chromium
async def test_records_that_verdicts_name_are_marked_listed_and_explained(tmp_path: Path, chromium: Chromium) -> None:
    asked, told = GetStreamSegmentInfo(7, SEGMENT, ""), StreamSegmentInfo(7, SEGMENT, True, False, False, 0, 15)
    shrunk = [
        Record(10**18 + 30_000 + way, 2, Direction(way), RecordKind.FRAME, encode(command))
        for way, command in enumerate((asked, told))
    ]
    async with shown(chromium, tmp_path, saved(tmp_path, [*dialogue(), *shrunk])) as browser:
        assert await browser.get(text_of(".view .problem")) == "‼ 1 rule broken:\nlength-shrinks (1)"
        assert await browser.get(text_of("#problem-count")) == "4 problems"
        texts, _ = await browser.get(call(DRAWN, False))
        assert texts.count("‼") == 2
        await browser.get("document.querySelector('.view .problem button').click()")
        await browser.until("byId('filter-said').textContent === '2 records of 16 match.'")
        assert await browser.get("filterInput.value") == 'broken = "length-shrinks"'
        rows = "[...document.querySelectorAll('tbody tr')].map((row) => [row.className, row.cells[4].title])"
        (classes, title), _ = await browser.get(rows)
        assert (classes, title) == ("bad", f"‼ length-shrinks: {RULES['length-shrinks'].text}")
        details = await opened(browser, 15)
        for part in ("Broken rule: length-shrinks", "was 46 bytes long", "Expected\n46", "Actual\n15"):
            assert part in details, part
        assert "length-shrinks" in await browser.get(text_of("#said"))
        await browser.get("[...drawer.querySelectorAll('.links button')].at(-1).click()")
        await browser.until("location.hash === '#record=10'")


@needs_chromium
async def test_events_of_a_read_and_of_an_append_of_one_frame_are_payloads_by_themselves(
    tmp_path: Path, chromium: Chromium
) -> None:
    events = [b'{"order": [1, 2]}', b"two", b"\x00\xff"]
    data = b"".join(bytes(4) + len(event).to_bytes(4, "big") + event for event in events)
    commands = [
        AppendBlockEnd(WRITER, len(data), data, 3, 3, 1),
        SegmentRead(SEGMENT, 0, True, False, data[:-1], 2),
        SegmentRead(SEGMENT, 0, True, False, data + b"rest", 3),
        SegmentRead(SEGMENT, 0, True, False, bytes(16), 4),
    ]
    ways = [Direction.REQUEST, *[Direction.REPLY] * 3]
    frames = [
        Record(at, 1, way, RecordKind.FRAME, encode(each))
        for at, (way, each) in enumerate(zip(ways, commands, strict=True))
    ]
    payloads = "[...drawer.querySelectorAll('.payload .buttons')].map((each) => each.textContent)"
    first = ["data[0] 17 bytesJSONTextHex", "data[1] 3 bytesTextHex"]
    async with shown(chromium, tmp_path, saved(tmp_path, frames)) as browser:
        for at, expected in enumerate((
            [*first, "data[2] 2 bytesHex"],
            [*first, "data[2] 1 of 2 bytesHex"],
            [*first, "data[2] 2 bytesHex", "data[3] 4 bytesTextHex"],
            ["data 16 bytesHex"],
        )):  # fmt: skip
            await opened(browser, at)
            assert await browser.get(payloads) == expected
            if at < 3:
                assert await browser.get("drawer.querySelector('.payload pre').textContent") == (
                    '{\n  "order": [\n    1,\n    2\n  ]\n}'
                )


@needs_chromium
async def test_the_state_of_anything_else_can_be_chosen_from_a_list_made_when_it_is_needed(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with shown(chromium, tmp_path, saved(tmp_path, dialogue())) as browser:
        assert "acknowledged" not in await opened(browser, 1)
        options = "[...drawer.querySelector('select').options].map((each) => each.text)"
        assert await browser.get(options) == ["Another segment, writer or transaction …"]
        for _ in range(2):
            await browser.get("drawer.querySelector('select').dispatchEvent(new Event('focus'))")
        names = await browser.get(options)
        assert names[1:] == [f"segment {SEGMENT}", f"writer {WRITER} of {SEGMENT}", f"segment {SEGMENT}x"]
        choose = (
            "(at) => { const list = drawer.querySelector('select'); list.selectedIndex = at; "
            "list.dispatchEvent(new Event('change')); }"
        )
        await browser.get(call(choose, 2))
        await browser.until("drawer.querySelector('section[aria-label]')?.ariaLabel === 'writer'")
        assert "Nothing is known yet." in await browser.get(text_of("#drawer section[aria-label]"))


@needs_chromium
async def test_every_record_is_reached_with_the_keyboard_and_said_aloud(tmp_path: Path, chromium: Chromium) -> None:
    async with shown(chromium, tmp_path, saved(tmp_path, dialogue())) as browser:
        await browser.get("page.views[0].canvas.focus()")
        selected = "page.views[0].timeline.selected"
        moves = (("ArrowRight", 0), ("ArrowRight", 1), ("r", 2), ("r", 1), ("End", 13), ("ArrowRight", 13))
        problems = (("p", 12), ("p", 11), ("n", 12), ("n", 11), ("Home", 0), ("ArrowDown", 0))
        for name, expected in moves + problems:
            await browser.get(key(name))
            assert await browser.get(selected) == expected, name
        await browser.get(key("ArrowRight"))
        assert await browser.get(text_of("#said")) == "Record 2: HELLO, request, connection 1, at 1 µs"
        await browser.get(key("Enter"))
        await browser.until("drawer.open && document.querySelector('#drawer-title').textContent === '2: HELLO'")
        slash = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))"
        await browser.get(f"{key('Escape')}; {slash}")
        await browser.until("!drawer.open && !location.hash")  # its `close` event has come
        assert await browser.get("document.activeElement.name") == "filter"
        await browser.get("page.views[0].canvas.focus()")
        span = "page.views[0].timeline.span"
        whole = await browser.get(span)
        await browser.get(key("+"))
        assert await browser.get(span) < whole
        await browser.get(key("0"))
        assert await browser.get(span) == whole
        await browser.get(key("o"))
        assert await browser.get("page.views[0].timeline.byOrder") is True


@needs_chromium
async def test_the_field_says_what_matches_and_what_is_wrong(tmp_path: Path, chromium: Chromium) -> None:
    async with shown(chromium, tmp_path, saved(tmp_path, dialogue())) as browser:
        await browser.get(
            "window.cleared = []; window.clear = window.clearTimeout; "
            "window.clearTimeout = (timer) => { cleared.push(timer); clear(timer); }; 0"
        )
        await browser.type("[name=filter]", "type ~ *APPEND*")
        await browser.until("byId('filter-said').textContent === '5 records of 14 match.'")
        rows = "document.querySelectorAll('tbody tr').length"
        assert await browser.get(rows) == 5
        await browser.get("page.views[0].canvas.focus()")
        await browser.get(key("Home"))
        assert await browser.get("page.views[0].timeline.selected") == 5
        assert await browser.get("cleared.includes(page.typing)"), "Enter has applied what was typed"
        await browser.get("filterInput.value = ''")
        await browser.type("[name=filter]", "type = READ_SEGMNT")
        await browser.until("byId('filter-said').textContent.startsWith('column 8: expected ')")
        assert await browser.get("filterCaret.textContent") == "type = READ_SEGMNT\n       ^"
        assert await browser.get("filterInput.getAttribute('aria-invalid')") == "true"
        assert await browser.get(rows) == 5, "the last filter stays"


@needs_chromium
async def test_wheel_and_drag_move_the_timeline_and_a_click_opens_a_record(tmp_path: Path, chromium: Chromium) -> None:
    async with shown(chromium, tmp_path, saved(tmp_path, dialogue())) as browser:
        box = await browser.get("(({x, y}) => [x, y])(page.views[0].canvas.getBoundingClientRect())")
        at = {"x": box[0] + 500, "y": box[1] + 45}
        state = "[page.views[0].timeline.from, page.views[0].timeline.span]"
        before = await browser.get(state)
        await browser.do("Input.dispatchMouseEvent", type="mouseWheel", deltaX=0, deltaY=-200, **at)
        await browser.until(f"{state}[1] < {before[1]}")
        zoomed = await browser.get(state)
        for kind, shift in (("mousePressed", 0), ("mouseMoved", 30), ("mouseMoved", 60), ("mouseReleased", 60)):
            moved = {"x": at["x"] + shift, "y": at["y"]}
            await browser.do("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **moved)
        await browser.until(f"{state}[0] < {zoomed[0]}")
        await browser.get("page.views[0].timeline.fit()")
        x = await browser.get("page.views[0].timeline.x(page.views[0].timeline.pos(10))")
        point = {"x": box[0] + x, "y": box[1] + 26 + 14}
        for kind in ("mousePressed", "mouseReleased"):
            await browser.do("Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **point)
        await browser.until("document.querySelector('#drawer-title')?.textContent === '11: READ_SEGMENT'")


DRAWN = """(narrow) => {
  const { timeline, trace } = page.views[0], context = timeline.context, texts = [], real = context.fillText;
  context.fillText = (text) => texts.push(text);
  if (narrow) timeline.width = 500;
  timeline.draw();
  context.fillText = real;
  return [texts, Array.from({ length: trace.count }, (_, at) => timeline.colourOf(at))];
}"""


@needs_chromium
async def test_two_traces_are_compared_side_by_side(tmp_path: Path, chromium: Chromium) -> None:
    one, other = FIXTURES / "traces" / "write.jsonl", FIXTURES / "traces" / "seal.jsonl"
    async with shown(chromium, tmp_path, one, against=other) as browser:
        said = await browser.get(text_of(".differences"))
        assert "10 streams differ" in said
        assert "A has one more HELLO, one more APPEND_SETUP, 2 more DATA_APPENDED" in said
        assert await browser.get("page.differences.length") == 10
        await browser.get("document.querySelector('.differences button').click()")
        await browser.until("document.querySelector('#drawer-title')?.textContent.startsWith('A, 6: ')")
        drawer = await browser.get(text_of("#drawer"))
        assert "segment\tscope/stream/1.#epoch.0\tscope/stream/0.#epoch.0" in drawer
        assert await browser.get("page.views.map((each) => each.timeline.selected)") == [5, 34]
        await browser.get("page.views[0].timeline.zoom(0.5)")
        await browser.until("page.views[0].timeline.span === page.views[1].timeline.span")
        await browser.get("page.filter('failure')")
        assert await browser.get(text_of("#filter-said")) == "A: 0 records of 60, B: 2 records of 76 match."


@pytest.mark.needs("chromium", "npm's package axe-core")
async def test_axe_finds_nothing_on_the_page_of_two_traces(tmp_path: Path, chromium: Chromium) -> None:
    one, other = FIXTURES / "traces" / "write.jsonl", FIXTURES / "traces" / "controller_calls.jsonl"
    async with shown(chromium, tmp_path, one, against=other) as browser:
        await browser.get("document.querySelector('.differences button').click()")
        await browser.until("drawer.open && !!document.querySelector('#drawer-title')")
        for width, dark in ((1280, False), (400, True)):
            await browser.look(width, dark=dark)
            assert await browser.violations() == []


@needs_chromium
async def test_damage_is_listed_and_the_rest_is_shown(tmp_path: Path, chromium: Chromium) -> None:
    whole = saved(tmp_path, [each for _ in range(40) for each in dialogue()]).read_bytes()
    damaged = tmp_path / "damaged.wtrace"
    damaged.write_bytes(whole + whole[-1000:])
    async with shown(chromium, tmp_path, damaged) as browser:
        notes = await browser.get(text_of(".notes"))
        assert "1 part of the file could not be read" in notes
        assert "Before record 561: the last block is torn" in notes
        assert "560 records" in await browser.get(text_of(".facts"))


@needs_chromium
async def test_a_trace_without_records_is_a_page_too(tmp_path: Path, chromium: Chromium) -> None:
    async with shown(chromium, tmp_path, saved(tmp_path, [], "empty.jsonl")) as browser:
        assert "0 records" in await browser.get(text_of(".facts"))
        await browser.get(key("ArrowRight"))
        await browser.get("page.filter('failure')")
        assert await browser.get(text_of(".where")) == "No record matches."


@needs_chromium
async def test_the_page_is_dark_where_dark_is_preferred_and_narrow_where_the_window_is(
    tmp_path: Path, chromium: Chromium
) -> None:
    records = dialogue("a-very-long-name/" * 20)
    async with shown(chromium, tmp_path, saved(tmp_path, records)) as browser:
        await browser.do("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=True)
        await browser.until("document.documentElement.clientWidth === 400")
        for at in (0, 7, 9):
            await opened(browser, at)
            assert await browser.get("document.documentElement.scrollWidth") == 400
        ink = "page.views[0].canvas.toDataURL()"
        light = await browser.get("getComputedStyle(document.body).backgroundColor"), await browser.get(ink)
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await browser.do("Emulation.setEmulatedMedia", features=dark)
        await browser.until(f"getComputedStyle(document.body).backgroundColor !== {light[0]!r}")
        await browser.until(f"{ink} !== {light[1]!r}")
        unlabelled = (
            "[...document.querySelectorAll('input, select, button, canvas:not([aria-hidden])')].filter((each) =>"
            " !(each.labels?.length || each.textContent.trim() || each.ariaLabel)).map((each) => each.outerHTML)"
        )
        assert await browser.get(unlabelled) == []
