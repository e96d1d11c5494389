"""Contract of the view: what doors read, and how fresh it says it is."""

from collections.abc import Sequence

import msgspec
import pytest

from kernel.ports import ExecutionQuery, Located
from schemas.events import ExecutionStatus
from schemas.records import Header
from tests.contract.view_harness import SHARD, ViewHarness
from tests.support.records import (
    CREATED_AT_US,
    change,
    ended_header,
    execution_id,
    make_batch,
    make_header,
    uuid_at,
)


class ReadSuite:
    async def test_an_execution_is_located_by_its_id_alone(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        header = make_header(tenant="globex", agent_id="team:writer.v2")

        await harness.view.apply(ownership, make_batch(0, 5, change(header)))

        found = await harness.view.locate(SHARD, header.execution_id)
        assert (found.watermark_seq, found.is_rebuilding) == (5, False)
        assert found.value == Located(tenant="globex", agent_id="team:writer.v2")
        assert (await harness.view.locate(SHARD, execution_id(2))).value is None
        assert (await harness.view.locate(SHARD + 1, header.execution_id)).value is None

    async def test_reads_of_a_shard_without_a_watermark_say_so(self, harness: ViewHarness) -> None:
        header = make_header()
        located = await harness.view.locate(SHARD, header.execution_id)
        fields = await harness.view.fields(SHARD, "acme", header.execution_id, (b"h",))
        listed = await harness.view.executions(SHARD, "acme", ExecutionQuery())
        live = await harness.view.live_executions(SHARD, "acme", "researcher")

        assert [seen.watermark_seq for seen in (located, fields, listed, live)] == [-1] * 4
        assert (located.value, fields.value, listed.value, live.value) == (None, (None,), (), 0)

    async def test_another_tenant_sees_none_of_the_fields(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        header = make_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(header)))

        seen = await harness.view.fields(SHARD, "globex", header.execution_id, (b"h",))

        assert seen.value == (None,)

    async def test_live_executions_are_counted_by_agent(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        headers = [make_header(number) for number in (1, 2, 3)]
        others = [make_header(4, agent_id="writer"), make_header(5, tenant="globex"), ended_header(6)]
        await harness.view.apply(ownership, make_batch(0, 1, *map(change, (*headers, *others))))

        await harness.view.apply(ownership, make_batch(1, 2, change(ended_header(2), before=headers[1])))

        async def count(tenant: str, agent_id: str) -> int:
            return (await harness.view.live_executions(SHARD, tenant, agent_id)).value

        assert await count("acme", "researcher") == 2
        assert await count("acme", "writer") == 1
        assert await count("globex", "researcher") == 1
        assert await count("globex", "writer") == 0

    async def test_a_halted_execution_still_counts_as_live(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        header = make_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(header)))

        halted = msgspec.structs.replace(header, halted="damaged")
        await harness.view.apply(ownership, make_batch(1, 2, change(halted, before=header)))

        assert (await harness.view.live_executions(SHARD, "acme", "researcher")).value == 1

    async def test_a_good_server_passes_the_check(self, harness: ViewHarness) -> None:
        await harness.view.check()

    async def test_beats_of_no_shard_are_none(self, harness: ViewHarness) -> None:
        await harness.view.beat([])


class ListSuite:
    async def test_a_list_is_newest_first_and_of_one_tenant(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        headers = [make_header(number) for number in (2, 1, 3)]
        await harness.view.apply(ownership, make_batch(0, 4, *map(change, headers), change(make_header(4, tenant="x"))))

        found = await harness.view.executions(SHARD, "acme", ExecutionQuery())

        assert (found.watermark_seq, found.is_rebuilding) == (4, False)
        assert found.value == (headers[2], headers[0], headers[1])

    @pytest.mark.parametrize(
        "query",
        [
            ExecutionQuery(),
            ExecutionQuery(agent_id="writer"),
            ExecutionQuery(status="completed"),
            ExecutionQuery(agent_id="writer", status="completed"),
            ExecutionQuery(agent_id="nobody"),
            ExecutionQuery(status="cancelled"),
        ],
    )
    @pytest.mark.parametrize("limit", [1, 4, 200])
    async def test_pages_show_every_match_once(self, harness: ViewHarness, query: ExecutionQuery, limit: int) -> None:
        headers = await self._population(harness)
        expected = [
            header
            for header in reversed(headers)
            if query.agent_id in ("", header.agent_id) and query.status in ("", header.status)
        ]

        shown: list[Header] = []
        while True:
            cursor = shown[-1].execution_id if shown else ""
            page = await self._page(harness, query, before_id=cursor, limit=limit)
            assert len(page) <= limit
            shown += page
            if len(page) < limit:
                break

        assert shown == expected

    @pytest.mark.parametrize(("after", "before"), [(0, 0), (2_500, 0), (0, 4_000), (2_000, 3_001), (3_000, 3_000)])
    async def test_created_bounds_are_exact_to_the_microsecond(
        self, harness: ViewHarness, after: int, before: int
    ) -> None:
        ownership = await harness.own()
        created = [CREATED_AT_US + offset for offset in (1_999, 2_000, 2_499, 2_500, 3_000, 3_999, 4_000)]
        headers = [make_header(number, created_at=at) for number, at in enumerate(created)]
        await harness.view.apply(ownership, make_batch(0, 1, *map(change, headers)))
        query = ExecutionQuery(
            created_after=CREATED_AT_US + after if after else 0, created_before=CREATED_AT_US + before if before else 0
        )

        found = await self._page(harness, query)

        assert sorted(header.created_at for header in found) == [
            at
            for at in created
            if (not after or at >= CREATED_AT_US + after) and (not before or at < CREATED_AT_US + before)
        ]

    @pytest.mark.parametrize("drift_ms", [-25_000, 25_000])
    async def test_an_id_drawn_earlier_or_later_than_the_creation_is_still_found(
        self, harness: ViewHarness, drift_ms: int
    ) -> None:
        ownership = await harness.own()
        header = make_header(execution_id=uuid_at(CREATED_AT_US // 1000 + drift_ms, 1))
        await harness.view.apply(ownership, make_batch(0, 1, change(header)))

        query = ExecutionQuery(created_after=CREATED_AT_US, created_before=CREATED_AT_US + 1)

        assert await self._page(harness, query) == [header]

    async def test_a_change_of_status_moves_the_execution_between_lists(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        before = make_header()
        await harness.view.apply(ownership, make_batch(0, 1, change(before)))

        after = ended_header(status="failed")
        await harness.view.apply(ownership, make_batch(1, 2, change(after, before=before)))

        for agent_id in ("", "researcher"):
            assert await self._page(harness, ExecutionQuery(agent_id=agent_id, status="running")) == []
            assert await self._page(harness, ExecutionQuery(agent_id=agent_id, status="failed")) == [after]

    async def test_an_execution_folded_anew_with_another_status_is_listed_under_that_alone(
        self, harness: ViewHarness
    ) -> None:
        ownership = await harness.own()
        await harness.view.apply(ownership, make_batch(0, 1, change(make_header())))

        ended = ended_header()
        await harness.view.apply(ownership, make_batch(1, 2, change(ended)))

        assert await self._page(harness, ExecutionQuery(status="running")) == []
        assert await self._page(harness, ExecutionQuery(status="completed")) == [ended]
        assert await self._page(harness, ExecutionQuery()) == [ended]

    async def test_agents_whose_names_look_like_other_lists_are_apart(self, harness: ViewHarness) -> None:
        ownership = await harness.own()
        headers = [make_header(number, agent_id=name) for number, name in enumerate(("a", "a:status:running", "b"))]
        await harness.view.apply(ownership, make_batch(0, 1, *map(change, headers)))

        for header in headers:
            for status in ("", "running"):
                query = ExecutionQuery(agent_id=header.agent_id, status=status)
                assert await self._page(harness, query) == [header]

    async def _population(self, harness: ViewHarness) -> list[Header]:
        ownership = await harness.own()
        statuses: Sequence[ExecutionStatus] = ("running", "completed", "blocked")
        headers = [
            make_header(number, status=statuses[number % 3], agent_id=("writer", "researcher")[number % 2])
            for number in range(1, 24)
        ]
        await harness.view.apply(ownership, make_batch(0, 1, *map(change, headers)))
        return headers

    async def _page(
        self, harness: ViewHarness, query: ExecutionQuery, *, before_id: str = "", limit: int = 50
    ) -> list[Header]:
        asked = msgspec.structs.replace(query, before_id=before_id, limit=limit)
        return list((await harness.view.executions(SHARD, "acme", asked)).value)
