"""The state of a group: conflicts, checkpoints that are gone, and which of the two forms a group has."""

import asyncio

import pytest

from segstore.client import Client, TableConfig
from segstore.client.errors import ConditionFailed, NoSuchReaderGroup
from segstore.client.groups import GroupForm
from segstore.client.groups.state import Draft
from segstore.client.tables import TableSegment
from segstore.wire.reader_groups import ClearCheckpointsBefore
from tests.client.groups.support import fill, group, shared

pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.mark.parametrize("form", ["java", "rust"])
async def test_changes_that_conflict_are_decided_again(form: GroupForm, pravega: Client) -> None:
    await fill(pravega, 0, segments=2)
    async with group(pravega, shared_with=form):
        groups = [shared(pravega) for _ in range(5)]
        await asyncio.gather(*[each.fetch() for each in groups])
        await asyncio.gather(*[each.change(lambda draft, n=n: draft.join(f"r{n}")) for n, each in enumerate(groups)])
        assert sorted((await groups[0].fetch()).readers) == [f"r{number}" for number in range(5)]
        with pytest.raises(ZeroDivisionError):
            await groups[0].change(lambda draft: draft.quit("r0", {}) or 1 / 0)
        assert "r0" in (await groups[1].fetch()).readers
        for each in groups:
            await each.aclose()
            await each.aclose()


async def test_a_checkpoint_that_others_forget_once_it_is_complete_is_known(pravega: Client) -> None:
    await fill(pravega, 0, segments=1)
    async with group(pravega):
        one, two = shared(pravega), shared(pravega)
        await one.fetch()

        def forget(draft: Draft) -> None:
            draft.begin_checkpoint("later")
            draft.add(ClearCheckpointsBefore("later"))

        with one.watching("c") as taken:
            await one.change(lambda draft: draft.join("r"))
            await one.change(lambda draft: draft.begin_checkpoint("c"))
            assert taken() is None
            await two.fetch()
            await two.change(lambda draft: draft.take_checkpoint("c", "r", {}))
            await two.change(forget)
            assert "c" not in (await one.fetch()).checkpoints.positions
            assert taken() == {"a/s/0.#epoch.0": 0}
        await asyncio.gather(one.aclose(), two.aclose())


async def test_an_existing_group_keeps_its_form_which_each_object_finds(pravega: Client) -> None:
    await fill(pravega, 0, segments=1)
    async with group(pravega, shared_with="rust"), group(pravega, shared_with="java") as again:
        found = shared(pravega)
        assert found.form is None
        await found.fetch()
        assert found.form == "rust"
        assert found.facts == {"segment": "a/g_kvtable/0.#epoch.0"}
        assert "_RGg" not in [stream async for stream in pravega.controller.list_streams("a")]
        await again.delete()
        with pytest.raises(NoSuchReaderGroup):
            await found.fetch()
        await found.aclose()
    async with group(pravega), group(pravega, shared_with="rust"):
        found = shared(pravega)
        await found.change(lambda draft: draft.join("r"))
        assert (found.form, found.facts) == ("java", {"stream": "a/_RGg"})
        await found.aclose()


async def test_an_empty_table_is_no_group_and_a_key_value_table_is_left_alone(pravega: Client) -> None:
    await fill(pravega, 0, segments=1)
    async with pravega.segment_requests() as requests:
        await TableSegment(requests, "a/g_kvtable/0.#epoch.0").create()
    with pytest.raises(NoSuchReaderGroup, match="reader group a/g does not exist"):
        await shared(pravega).fetch()
    await pravega.controller.create_table("a", "t", TableConfig(primary_key_bytes=2))
    async with pravega.table("a", "t") as table:
        for number in range(2):  # without entries, and with one
            with pytest.raises(ConditionFailed, match="reader group a/t cannot have the name of a key-value table"):
                await group(pravega, "t", shared_with="rust").open()
            with pytest.raises(NoSuchReaderGroup):
                await group(pravega, "t", streams=()).open()
            await table.put(b"%02d" % number, b"value")
        assert (await table.get(b"00")) is not None
    async with group(pravega, "t") as made:
        assert await made.streams() == ["a/s"]


async def test_what_a_table_does_not_hold_is_refused(pravega: Client) -> None:
    await fill(pravega, 0, segments=1)
    async with group(pravega, shared_with="rust") as made:
        for refused, what in (
            (made.checkpoint("c"), "checkpoints"),
            (made.reset(), "resets"),
            (made.update_retention({}), "retention"),
        ):
            with pytest.raises(
                ConditionFailed, match=f"reader group a/g has no {what}: it is shared with clients in Rust"
            ):
                await refused
        assert (await made.config()).checkpoint_ms == -1
    with pytest.raises(ValueError, match="has no retention 'manual'"):
        group(pravega, shared_with="rust", retention="manual")
    with pytest.raises(ValueError, match="shared with 'java' or 'rust', not 'go'"):
        group(pravega, shared_with="go")
