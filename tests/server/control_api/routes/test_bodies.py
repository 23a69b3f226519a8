"""Bodies in YAML: rules and errors are the same as in JSON, and hostile documents are refused."""

from itertools import pairwise

import httpx

from segstore.server import MockSegmentStore
from tests.looped import looped
from tests.server.control_api.support import asking, refusal

FILE = """\
seed: 7
rules:
- match: type = READ_SEGMENT
  do: [{delay_ms: 5}, close before]
  name: reads
toxics:
- {type: latency, latency: 10}
"""


async def put(http: httpx.AsyncClient, text: str | bytes, kind: str = "application/yaml") -> httpx.Response:
    return await http.put("/v1/faults", content=text, headers={"content-type": kind})


@looped("kind", ["application/yaml", "text/yaml; charset=utf-8", "Application/X-YAML"])
async def test_a_fault_file_in_yaml_replaces_all_rules(kind: str) -> None:
    async with asking() as (mock, http):
        answer = await put(http, FILE, kind)
        assert answer.status_code == 200, answer.text
        (rule,) = answer.json()["rules"]
        assert (rule["name"], answer.json()["seed"], len(rule["rule"]["do"])) == ("reads", 7, 2)
        assert [tally.name for tally in mock.faults.toxics.tallies()] == ["latency_downstream"]
        assert (await put(http, "")).status_code == 422
        assert (await put(http, "{}")).json()["rules"] == []


async def test_what_is_wrong_is_refused_with_its_place(mock: MockSegmentStore, http: httpx.AsyncClient) -> None:
    mock.faults.add("type = READ_SEGMENT", do="hold", name="kept")
    for text, status, where, said in [
        ("rules:\n- do: WrongHots\n", 422, "body.rules[0].do[0]", "body.rules[0].do[0]: 'WrongHots' is not a reply"),
        ("rules: [", 400, "body", "body: line 1: this is not YAML: "),
        (b"a: \xff", 400, "body", "body: not UTF-8 at byte 3"),
        ("[" * 10_000, 400, "body", "body: this is not YAML: it is nested too deeply"),
        ("rules:\n- do: ok\n  do: close", 400, "body", "body: line 3: this is not YAML: the key 'do' appears twice"),
        (f"seed: 1{'0' * 5000}", 400, "body", "body: this is not YAML: Exceeds the limit (4300 digits)"),
    ]:
        found = refusal(await put(http, text))
        assert (found[0], found[2]) == (status, where)
        assert found[1].startswith(said)
        assert mock.faults.rules == ["kept"]


async def test_a_bomb_of_aliases_is_no_larger_than_its_text() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in pairwise("abcdefgh"))
    async with asking() as (_, http):
        assert refusal(await put(http, bomb))[0] == 400
        for size in (65_537, 300_000):
            assert refusal(await put(http, "#" * size))[0] == 413
        assert (await put(http, "#" * 65_530 + "\n{}")).status_code == 200


async def test_yaml_is_refused_where_only_json_is_read(http: httpx.AsyncClient) -> None:
    for path in ("/v1/toxics", "/v1/writers"):
        answer = await http.post(path, content="name: a", headers={"content-type": "application/yaml"})
        assert refusal(answer)[::2] == (415, "header.content-type")
    assert refusal(await put(http, "{}", "text/plain"))[0] == 415
