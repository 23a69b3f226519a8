"""The forms of fault rules and toxics, in a browser: all fields, errors at the field, changes while the server runs."""

from typing import Any

import pytest

from segstore.server import Rule
from segstore.server.toxics import TOXIC_MODELS
from segstore.wire import GetStreamSegmentInfo
from segstore.wire.controller_api import STATUSES
from tests.browser import Chromium, Page
from tests.server.control_api.support import asking, peer_of
from tests.server.support import SEGMENT, create

pytestmark = pytest.mark.needs("chromium")

ACTIONS = ("error", "delay_ms", "hold", "drop", "duplicate", "corrupt", "truncate", "close", "status", "answer", "ok")
FORM = "#faults form"
TOXIC = "#toxics form"


def of_action(index: int, name: str) -> str:
    return f"{FORM} .actions li:nth-child({index + 1}) [name={name}]"


async def new_rule(page: Page) -> None:
    await page.click("#faults", "New rule")
    await page.until("!ruleForm.root.hidden")


async def choose(page: Page, index: int, action: str) -> None:
    await page.fill(f"{FORM} .actions li:nth-child({index + 1}) .choice > .field select", action)


async def refused(page: Page, form: str = FORM) -> tuple[str, str]:
    """Sends a form; the name of the field that has the focus and an error then, and the error."""
    await page.get(f"document.querySelector('{form}').requestSubmit()")
    await page.until(f"[...document.querySelectorAll('{form} .problem')].some((each) => each.textContent)")
    found = "document.activeElement.getAttribute('aria-invalid') === 'true' && document.activeElement"
    error: str = await page.get(f"document.getElementById(({found}).getAttribute('aria-describedby')).textContent")
    name: str = await page.get(f"({found}).name")
    return name, error


async def sent(page: Page, form: str = FORM) -> None:
    await page.get(f"document.querySelector('{form}').requestSubmit()")
    problems = f"[...document.querySelectorAll('{form} .problem')].map((each) => each.textContent).join('')"
    await page.until(f"document.querySelector('{form}').hidden || {problems}")
    assert await page.get(f"document.querySelector('{form}').hidden || {problems}") is True


async def test_the_form_has_every_field_of_a_rule_and_every_action(chromium: Chromium) -> None:
    async with asking() as (mock, _), chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        await new_rule(page)
        assert set(await page.get("[...ruleForm.fields.fields.keys()]")) == set(Rule.model_fields) - {"do"}
        assert await page.get("ruleForm.models.map(([key]) => key)") == list(ACTIONS)
        assert set(await page.get("SUGGESTIONS.status")) <= set(STATUSES)
        for known in await page.get("SUGGESTIONS.error"):
            Rule(do=known)  # type: ignore[arg-type]  # a word
        assert page.complaints == []


async def test_a_rule_with_all_fields_is_added(chromium: Chromium) -> None:
    values: dict[str, Any] = {
        "name": "<b>x<b>", "match": "type = SEGMENT_READ", "on": "reply", "store": 0, "each": "segment", "nth": (5, 8),
        "skip": 2, "every": 3, "probability": 0.25, "times": 7,
    }  # fmt: skip
    async with asking() as (mock, _), chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        await new_rule(page)
        for name, value in values.items():
            await page.fill(f"{FORM} [name={name}]", "5, 8" if name == "nth" else str(value))
        await choose(page, 0, "error")
        await page.fill(of_action(0, "error"), "SegmentIsSealed")
        await page.fill(of_action(0, "fields"), '{"offset": 5}')
        await page.click(FORM, "Another action")
        await choose(page, 1, "close")
        await page.fill(of_action(1, "close"), "after")
        await page.fill(of_action(1, "reply_bytes"), "3")
        await page.get(f"document.querySelector('{of_action(1, 'reset')}').click()")
        await sent(page)
        (tally,) = mock.faults.tallies()
        actions = [
            {"error": "SegmentIsSealed", "fields": {"offset": 5}},
            {"close": "after", "reply_bytes": 3, "reset": True},
        ]
        assert tally.rule == Rule(**values, do=actions)  # type: ignore[arg-type]  # as JSON has them
        row = await page.until("document.querySelector('#faults tbody tr')?.innerText")
        assert "<b>x<b>" in row
        assert "probability 0.25" in row
        assert "close after, reply bytes 3, reset true" in row
        assert await page.get("document.querySelector('#faults b')") is None
        assert await page.get("document.activeElement.textContent") == "New rule"
        assert page.complaints == []


async def test_a_new_rule_and_a_new_toxic_are_valid_whatever_they_do(chromium: Chromium) -> None:
    async with asking() as (mock, _), chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        for number, action in enumerate(("", *ACTIONS[:8])):
            await new_rule(page)
            if action:
                await choose(page, 0, action)
            await sent(page)
            assert len(mock.faults.rules) == number + 1
        for number, model in enumerate(TOXIC_MODELS.values()):
            await page.click("#toxics", "New toxic")
            await page.until("!toxicForm.root.hidden")
            await page.fill(f"{TOXIC} select", model.model_json_schema()["properties"]["type"]["const"])
            await sent(page, TOXIC)
            assert len(mock.faults.toxics.tallies()) == number + 1


async def test_all_errors_are_shown_at_once_at_their_fields(chromium: Chromium) -> None:
    wrong = {"match": "type = ", "probability": "7", "nth": "1, x", "every": "0"}
    async with asking() as (mock, _), chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        await new_rule(page)
        for name, value in wrong.items():
            await page.fill(f"{FORM} [name={name}]", value)
        await choose(page, 0, "delay_ms")
        await page.fill(of_action(0, "delay_ms"), "-3")
        assert (await refused(page))[0] == "match"
        marked = f"[...document.querySelectorAll('{FORM} [aria-invalid]')].map((each) => each.name)"
        assert set(await page.get(marked)) == {*wrong, "delay_ms"}
        assert mock.faults.rules == []


async def test_errors_stand_at_the_field_which_gets_the_focus(chromium: Chromium) -> None:
    async with asking() as (mock, _), chromium.page() as page:
        mock.faults.add(do="ok", name="taken")
        await page.open(f"{mock.http_url}/")
        await new_rule(page)
        await choose(page, 0, "delay_ms")
        for value in ("", "-3"):
            await page.fill(of_action(0, "delay_ms"), value)
            assert (await refused(page))[0] == "delay_ms"
        await page.fill(of_action(0, "delay_ms"), "3")
        await page.fill(f"{FORM} [name=match]", "type = ")
        name, error = await refused(page)
        assert (name, error.startswith("column 8: ")) == ("match", True)
        await page.fill(f"{FORM} [name=match]", "")
        for field, value, expected in (
            ("nth", "1, x", "whole number"),
            ("name", "taken", "there is a rule with the name 'taken'"),
        ):
            before = await page.get(f"document.querySelector('{FORM} [name={field}]').value")
            await page.fill(f"{FORM} [name={field}]", value)
            name, error = await refused(page)
            assert (name, expected in error) == (field, True)
            await page.fill(f"{FORM} [name={field}]", before)
        await page.click(FORM, "Another action")
        await choose(page, 1, "answer")
        await page.fill(of_action(1, "answer"), "{status")
        assert (await refused(page))[0] == "answer"
        await page.fill(of_action(1, "answer"), '{"x": 1}')
        assert await refused(page) == ("answer", "no answer has a field 'x'")
        await choose(page, 1, "error")
        await page.fill(of_action(1, "error"), "WrongHots")
        name, error = await refused(page)
        assert (name, "WrongHost?" in error) == ("error", True)
        await page.fill(of_action(1, "error"), "WrongHost")
        await page.fill(of_action(1, "fields"), '{"nope": 1}')
        name, error = await refused(page)
        assert (name, "there is no such field" in error) == ("error", True)
        await page.get(f"document.querySelectorAll('{FORM} .actions li > button')[1].click()")
        await choose(page, 0, "status")
        await page.fill(of_action(0, "status"), "INTERNAL")
        await page.get(f"document.querySelector('{FORM}').requestSubmit()")
        await page.until("ruleForm.rest.textContent.includes('is for controller calls')")
        assert len(mock.faults.rules) == 1
        await page.get(f"document.querySelector('{FORM} [name=match]').focus()")
        await page.press("Escape")
        await page.until("ruleForm.root.hidden")
        assert [complaint for complaint in page.complaints if "status of 4" not in complaint] == []


async def test_a_rule_is_edited_disabled_and_removed_and_what_it_holds_is_released(chromium: Chromium) -> None:
    async with asking() as (mock, _), peer_of(mock) as peer, chromium.page() as page:
        mock.faults.add("type = GET_STREAM_SEGMENT_INFO", do="hold", name="held")
        mock.faults.add("type = CREATE_SEGMENT", do=["WrongHost", {"delay_ms": 5}], name="last")
        await peer.ask(create())
        peer.send(GetStreamSegmentInfo(1, SEGMENT, ""))
        await mock.faults.wait_held("held")
        await page.open(f"{mock.http_url}/")
        await page.click("#faults", "Release")
        await peer.receive(1)
        await page.until("document.querySelector('#said').textContent === 'held released 1.'")
        await page.until("document.querySelector('#faults tbody tr').cells[5].textContent === '0'")

        await page.click("#faults tr:nth-child(2)", "Edit")
        await page.until("!ruleForm.root.hidden")
        assert await page.get("ruleForm.actions.map((each) => each.chosen.get())") == [
            {"error": "WrongHost", "at": "before"},
            {"delay_ms": 5, "at": "before", "overtake": False},
        ]
        await page.get(f"document.querySelectorAll('{FORM} .actions li > button')[0].click()")
        await page.fill(f"{FORM} [name=every]", "2")
        await sent(page)
        rule = mock.faults.tallies()[1].rule
        assert (mock.faults.rules, rule.every, rule.times) == (["held", "last"], 2, None)
        assert rule.do == Rule(do={"delay_ms": 5}).do  # type: ignore[arg-type]  # as JSON has it

        await page.get("document.querySelectorAll('#faults tbody button')[1].focus()")
        await page.press("Enter", "\r")
        await page.until("document.activeElement.textContent === 'Enable'")
        assert not mock.faults.tallies()[0].enabled
        await page.until("document.querySelector('#faults tbody tr').classList.contains('off')")
        await page.click("#faults", "Remove")
        await page.until("document.querySelectorAll('#faults tbody tr').length === 1")
        assert mock.faults.rules == ["last"]
        assert page.complaints == []


async def test_a_rule_whose_answer_has_no_fields_is_edited(chromium: Chromium) -> None:
    async with asking() as (mock, _), chromium.page() as page:
        mock.faults.add("rpc = createScope", do={"answer": {}}, name="empty")
        await page.open(f"{mock.http_url}/")
        await page.click("#faults", "Edit")
        await page.until("!ruleForm.root.hidden")
        await page.fill(f"{FORM} [name=every]", "2")
        await sent(page)
        assert mock.faults.tallies()[0].rule.do == Rule(match="rpc = createScope", do={"answer": {}}).do  # type: ignore[arg-type]  # as JSON has it
        assert mock.faults.tallies()[0].rule.every == 2
        assert page.complaints == []


async def test_a_function_as_an_action_cannot_be_edited_on_the_page(chromium: Chromium) -> None:
    async with asking() as (mock, _), chromium.page() as page:
        mock.faults.add("", lambda _: None, name="function")
        await page.open(f"{mock.http_url}/")
        await page.until("document.querySelectorAll('#faults tbody tr').length === 1")
        shown = "[...document.querySelectorAll('#faults tbody button')].filter((each) => each.checkVisibility())"
        assert await page.get(f"{shown}.map((each) => each.textContent)") == ["Disable", "Remove"]


async def test_toxics_are_added_with_their_attributes_and_removed(chromium: Chromium) -> None:
    async with asking() as (mock, _), chromium.page() as page:
        await page.open(f"{mock.http_url}/")
        await page.click("#toxics", "New toxic")
        await page.until("!toxicForm.root.hidden")
        for model in TOXIC_MODELS.values():
            (type_name,) = (schema["const"] for schema in [model.model_json_schema()["properties"]["type"]])
            await page.fill(f"{TOXIC} select", type_name)
            assert set(await page.get("[...toxicForm.choice.chosen.fields.keys()]")) == set(model.model_fields) - {
                "type"
            }
        await page.fill(f"{TOXIC} select", "bandwidth")
        await page.fill(f"{TOXIC} [name=rate]", "0")
        name, error = await refused(page, TOXIC)
        assert (name, "greater than 0" in error) == ("rate", True)
        await page.fill(f"{TOXIC} [name=rate]", "64")
        await page.fill(f"{TOXIC} [name=stream]", "upstream")
        await page.fill(f"{TOXIC} [name=toxicity]", "0.5")
        await page.fill(f"{TOXIC} [name=name]", "<i>slow<i>")
        await sent(page, TOXIC)
        (tally,) = mock.faults.toxics.tallies()
        toxic = tally.toxic.model_dump()
        assert (toxic["rate"], toxic["stream"], toxic["toxicity"], tally.name) == (64, "upstream", 0.5, "<i>slow<i>")
        row = await page.until("document.querySelector('#toxics tbody tr')?.innerText")
        assert "toxicity 0.5, rate 64 KB/s" in row
        assert await page.get("document.querySelector('#toxics i')") is None
        await page.click("#toxics", "Remove")
        await page.until("document.querySelectorAll('#toxics tbody tr').length === 0")
        assert mock.faults.toxics.tallies() == []
        assert [complaint for complaint in page.complaints if "status of 422" not in complaint] == []
