"""Names in paths, whatever their characters."""

from urllib.parse import quote

import httpx

from segstore.server import MockSegmentStore
from tests.server.control_api.support import done, refusal


async def test_a_path_leads_to_the_name_that_it_has_whatever_the_characters(http: httpx.AsyncClient) -> None:
    for name in ("a\nb", "\n", "orders\n", "a/b\n\n", "a\r\nb", "a\u2028b", "%0A", "a b"):
        await done(http, "POST", "/v1/writers", {"name": name})
        for other in {f"{name}\n", name.replace("\n", "")} - {"", name}:
            assert refusal(await http.delete(f"/v1/writers/{quote(other)}"))[0] == 404
        assert (await done(http, "GET", "/v1/writers"))["names"] == [name]
        assert (await http.delete(f"/v1/writers/{quote(name)}")).status_code == 204
        assert (await done(http, "GET", "/v1/writers"))["names"] == []


async def test_segments_with_line_breaks_are_found_by_their_paths(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    for name in ("new\nline", "new\nline\n"):
        mock.store.create_segment(name, now_ms=0)
        assert (await done(http, "GET", f"/v1/segments/{quote(name)}"))["name"] == name
        assert (await http.get(f"/v1/bytes/{quote(name)}")).content == b""
    assert refusal(await http.get("/v1/segments/new%0Aline%0A%0A"))[0] == 404
