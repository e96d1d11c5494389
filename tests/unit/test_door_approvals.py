"""Approvals at the door apart from any log: long lists out of several shards, who decides, and ids by shard."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.domain.identity import shard_of
from kernel.door.approvals import READ_MAX, Approvals, decider_of
from kernel.door.drawing import new_approval_id
from kernel.door.exchange import Principal, Request, Response
from kernel.door.freshness import Freshness
from kernel.door.quotas import Quotas
from kernel.door.routes import ROUTES
from kernel.log.memory import MemoryLog
from kernel.settings import Settings
from kernel.view.memory import MemoryView
from schemas.ids import new_uuid7
from tests.support.records import STREAM_CREATED_AT, approval_id, change, make_approval, make_batch, make_header, new

LIST = next(route for route in ROUTES if route.operation == "list_approvals")
SHARDS = 3


async def view_with(numbers: Sequence[int]) -> MemoryView:
    """A view whose shards have so many approvals; the ids of all of them are mixed."""
    view = MemoryView()
    for shard, count in enumerate(numbers):
        ownership = await view.acquire(shard, owner="one", ttl_ms=60_000, lease_ms=0)
        assert ownership is not None
        await view.wipe(ownership, created_at=STREAM_CREATED_AT, lease_ms=0)
        records = [make_approval(at * SHARDS + shard) for at in range(count)]
        header = make_header(shard, field_count=1 + count)
        await view.apply(ownership, make_batch(0, 1, change(header, approvals=tuple(map(new, records)))))
    return view


async def listed(view: MemoryView, query: str) -> Response:
    freshness = Freshness(SHARDS)
    for shard in range(SHARDS):
        freshness.learn_floor(shard, 1, losses=0)
    # Reading a list appends nothing.
    settings, control = Settings(shards=SHARDS), Control(MemoryLog(shards=SHARDS), Sealer("m" * 32))
    approvals = Approvals(
        settings=settings,
        appending=cast("Any", None),
        quotas=Quotas(settings=settings, control=control, view=view),
        view=view,
        freshness=freshness,
    )
    return await approvals.list_approvals(
        Request(
            route=LIST,
            names=(),
            query=query.encode(),
            headers={},
            body=b"",
            caller=Principal(tenant="acme", name="api", scopes=frozenset(LIST.scopes)),
            arrived_at=0,
            deadline=asyncio.get_running_loop().time() + 10,
        )
    )


def ids_of(response: Response) -> list[str]:
    return [each["id"] for each in msgspec.json.decode(response.body)]


@pytest.mark.parametrize(
    "numbers", [(0, 0, 0), (READ_MAX, 0, 1), (READ_MAX + 1, 2 * READ_MAX, 3), (2 * READ_MAX + 7, 5, READ_MAX - 1)]
)
async def test_a_list_without_limit_and_cursor_is_whole_however_long_it_is(numbers: tuple[int, ...]) -> None:
    view = await view_with(numbers)

    response = await listed(view, "")

    expected = [approval_id(at * SHARDS + shard) for shard, count in enumerate(numbers) for at in range(count)]
    assert ids_of(response) == sorted(expected)
    assert response.headers == ()


@pytest.mark.parametrize("limit", [1, READ_MAX - 1, READ_MAX, READ_MAX + 1, 3 * READ_MAX])
async def test_pages_of_any_length_put_together_are_the_whole(limit: int) -> None:
    view = await view_with((2 * READ_MAX, 2, READ_MAX) if limit > 1 else (3, 0, 2))
    whole = ids_of(await listed(view, ""))

    shown: list[str] = []
    cursor = ""
    while True:
        page = await listed(view, f"limit={limit}&cursor={cursor}")
        shown += ids_of(page)
        if not page.headers:
            break
        cursor = page.headers[0][1].decode()
        assert len(ids_of(page)) == limit
        assert cursor == shown[-1]

    assert shown == whole


async def test_a_limit_is_a_hundred_where_only_a_cursor_is_given_and_a_thousand_at_most() -> None:
    view = await view_with((700, 400, 100))

    after_the_first = await listed(view, f"cursor={approval_id(0)}")
    clamped = await listed(view, "limit=5000")

    assert (len(ids_of(after_the_first)), len(after_the_first.headers)) == (100, 1)
    assert (len(ids_of(clamped)), len(clamped.headers)) == (1000, 1)


@pytest.mark.parametrize(
    ("scopes", "named", "expected"),
    [
        ({"approvals:decide"}, "", ("api", "")),
        ({"approvals:decide"}, "boss", ("api", "")),
        ({"approvals:decide", "approvals:assert"}, "boss", ("boss", "api")),
        ({"approvals:decide", "approvals:assert"}, "", ("api", "")),
    ],
)
def test_another_decider_is_named_by_those_alone_who_may(
    scopes: set[str], named: str, expected: tuple[str, str]
) -> None:
    principal = Principal(tenant="acme", name="api", scopes=frozenset(scopes))

    assert decider_of(principal, named) == expected


@given(shards=st.integers(1, 16))
def test_an_approval_lies_in_the_shard_of_its_execution(shards: int) -> None:
    execution_id = new_uuid7()

    assert shard_of(new_approval_id(execution_id, shards), shards) == shard_of(execution_id, shards)
