"""The OpenAPI description of the control API: valid, complete, stable, and true of a served store."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from segstore.server.control_api.app import application
from tests.processes import PATIENCE_S, SERVE, started
from tests.server.control_api.support import asking, done, refusal

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    return application("stores").openapi()


def operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each operation."""
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def test_the_description_is_valid_openapi_3_1(description: dict[str, Any]) -> None:
    assert description["openapi"].startswith("3.1.")
    assert [error.message for error in OpenAPIV31SpecValidator(description).iter_errors()] == []


def test_operations_have_readable_ids_which_stay(description: dict[str, Any]) -> None:
    described = {f"{each['operationId']} {method} {path}" for method, path, each in operations(description)}
    known = (HERE / "operations.txt").read_text("utf-8").splitlines()
    assert set(known) - described == set(), "clients that were generated from the description use these ids"
    names = [each["operationId"] for _, _, each in operations(description)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", name) for name in names)


def test_every_response_has_a_description_and_its_content_a_schema(description: dict[str, Any]) -> None:
    problems = description["components"]["responses"]
    for method, path, operation in operations(description):
        assert operation["summary"], path
        responses = dict(operation["responses"])
        assert {"400", "401", "403", "500"} < responses.keys(), (method, path)
        for status, response in responses.items():
            found = problems[response["$ref"].rpartition("/")[2]] if "$ref" in response else response
            assert found["description"], (method, path, status)
            kinds = found.get("content", {})
            assert all(kind["schema"] for kind in kinds.values()), (method, path, status)
            if not status.startswith("2"):
                assert kinds == {
                    "application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
                }
            elif status != "204":
                assert kinds, (method, path, status)


def test_every_described_model_is_used(description: dict[str, Any]) -> None:
    text = json.dumps(description)
    for kind in ("schemas", "responses"):
        unused = [name for name in description["components"][kind] if f'"#/components/{kind}/{name}"' not in text]
        assert unused == []


async def test_the_description_requires_the_token_that_a_server_requires(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a" * 16, encoding="utf-8")
    async with asking(http_token_file=token) as (_, http):
        assert refusal(await http.get("/v1/openapi.json"))[0] == 401
        given = await http.get("/v1/openapi.json", headers={"authorization": f"Bearer {'a' * 16}"})
    assert given.json()["security"] == [{"token": []}]
    async with asking() as (_, http):
        open_to_all = (await http.get("/v1/openapi.json")).json()
    assert open_to_all["security"] == [{}, {"token": []}]
    assert open_to_all["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


async def test_a_refused_method_is_answered_with_those_of_the_path(http: httpx.AsyncClient) -> None:
    for method, path, allowed in [
        ("PATCH", "/v1/health", {"GET", "HEAD"}),
        ("PATCH", "/v1/faults", {"GET", "HEAD", "PUT", "POST", "DELETE"}),
        ("GET", "/v1/requests/keep", {"POST", "DELETE"}),
        ("PUT", "/v1/requests", {"GET", "HEAD", "DELETE"}),
        ("OPTIONS", "/v1/streams/a/b", {"GET", "HEAD", "PUT", "DELETE"}),
    ]:
        answer = await http.request(method, path)
        status, detail, where = refusal(answer)
        assert (status, where) == (405, "method")
        assert set(answer.headers["allow"].split(", ")) == allowed
        assert all(each in detail for each in allowed)


async def test_head_answers_as_get_without_a_body(http: httpx.AsyncClient) -> None:
    for path in ("/", "/metrics", "/v1/health", "/v1/openapi.json", "/v1/segments", "/v1/nothing"):
        head, get = await http.head(path), await http.get(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        assert head.headers["content-type"] == get.headers["content-type"]


async def test_paths_of_the_rest_api_are_answered_with_its_option(http: httpx.AsyncClient) -> None:
    for method, path in (
        ("POST", "/v1/scopes"),
        ("PUT", "/v1/scopes/a/streams/b"),
        ("GET", "/v1/scopes/a/readergroups"),
        ("DELETE", "/ping"),
        ("GET", "/v1/health/liveness"),
    ):
        status, detail, _ = refusal(await http.request(method, path))
        assert status in (404, 405)
        assert "--rest-port" in detail


@pytest.mark.long
def test_a_served_store_answers_as_described(tmp_path: Path) -> None:
    with started(SERVE) as (process, line):
        url = f"http://{json.loads(line)['http']}"
        with httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as http:
            http.put("/v1/streams/shop/orders").raise_for_status()
            options = ("--config-file", str(HERE / "schemathesis.toml"), "--no-color")
            asked = ("--phases", "coverage", "--generation-deterministic")
            command = [sys.executable, "-m", "schemathesis.cli", *options, "run", f"{url}/v1/openapi.json", *asked]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
            assert done.returncode == 0, done.stdout[-20_000:]
            total = len(list(operations(http.get("/v1/openapi.json").json())))
            assert f"Tested: {total - 1}" in done.stdout  # one is left out in the configuration
            assert http.get("/v1/health").json()["status"] == "ok"
        process.terminate()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == 0


async def test_a_mistyped_name_is_refused_with_the_nearest_one(http: httpx.AsyncClient) -> None:
    for method, path, body, where, said in [
        ("POST", "faults", {"do": "close", "nht": 3}, "body.nht", "there is no such key (nth?)"),
        ("POST", "faults", {"do": {"close": "after", "on": 1}}, "body.do[0].on", "no such key; there are close"),
        ("PUT", "faults", {"rules": [{"do": "ok", "nme": "a"}]}, "body.rules[0].nme", "(name?)"),
        ("POST", "toxics", {"type": "latency", "latncy": 1}, "body.latncy", "there is no such key (latency?)"),
        ("POST", "streams/a/b/events", {"events": [{"txt": "a"}]}, "body.events[0].txt", "(text?)"),
        ("POST", "faults", [], "body", "an object is needed"),
        ("GET", "requests?mtach=x", None, "query.mtach", "there is no such parameter (match?)"),
        ("GET", "health?x=1", None, "query.x", "there are no parameters"),
        ("GET", "requests?match=type%20=%20EVENT", None, "query.match", "no request can match this"),
        ("GET", "requests?match=status%20=%20STREAM_EXIST", None, "query.match", "STREAM_EXISTS?"),
    ]:
        status, sentence, place = refusal(await http.request(method, f"/v1/{path}", json=body))
        assert (status, place) == (422, where)
        assert said in sentence


async def test_servers_of_a_process_share_their_routes_and_nothing_else() -> None:
    async with asking() as (_, first), asking() as (_, second):
        await done(first, "POST", "/v1/writers", {"name": "a"})
        assert [(await done(http, "GET", "/v1/writers"))["names"] for http in (first, second)] == [["a"], []]
        applications = application.cache_info().misses
    async with asking() as (_, http):
        assert (await http.get("/v1/health")).status_code == 200
    assert application.cache_info().misses == applications
