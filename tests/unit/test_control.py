"""Control: agents, changes that hold at once where they were made, and the number of shards."""

import asyncio

import pytest
from msgspec import Raw

from kernel.control.agents import Agent
from kernel.control.control import ENTRY_BYTES_MAX, SUBMISSIONS_MAX, Control
from kernel.control.sealing import Sealer
from kernel.control.state import Accepted
from kernel.domain.errors import (
    Invalid,
    LogUnavailable,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    TooLarge,
    Unavailable,
)
from kernel.log.limits import LogLimits
from kernel.log.memory import MemoryLog
from schemas.control import AgentDescribed, AgentPut, encode_control
from schemas.ids import new_uuid7
from tests.support.control import POLL_SECONDS, SECONDS, Clock, DamagedLog, append, deleted, following, put
from tests.support.wait import loop_turns, wait_until_async


@pytest.fixture(scope="module")
def sealer() -> Sealer:
    return Sealer("a master key of the tests")


@pytest.fixture
def log() -> DamagedLog:
    return DamagedLog()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def control(log: MemoryLog, sealer: Sealer, clock: Clock) -> Control:
    return Control(log, sealer, poll_seconds=POLL_SECONDS, clock=clock)


# ---------------------------------------------------------------- what it knows


async def test_a_change_holds_at_once_here_and_soon_elsewhere(
    log: MemoryLog, control: Control, sealer: Sealer, clock: Clock
) -> None:
    other = Control(log, sealer, poll_seconds=POLL_SECONDS, clock=clock)
    async with following(control, other):
        assert await control.submit(put(sealer), timeout_seconds=SECONDS) == Accepted(is_new=True)

        agent = control.agent("default", "a")
        assert agent is not None
        assert agent.secrets == (b"first",)
        await wait_until_async(lambda: other.agent("default", "a") == agent, "the other process to know the agent")

        assert await control.submit(put(sealer, text="second"), timeout_seconds=SECONDS) == Accepted(is_new=False)
        assert control.agents("default")[0].secrets == (b"second",)
        await control.submit(deleted(), timeout_seconds=SECONDS)
        assert control.agent("default", "a") is None
        assert control.agents_named("a") == ()
        await wait_until_async(lambda: other.agent("default", "a") is None, "the other process to forget the agent")


async def test_an_agent_shows_everything_but_its_secrets(control: Control, sealer: Sealer) -> None:
    first = put(sealer)
    entry = AgentPut(
        id=new_uuid7(),
        at=5,
        by="api",
        tenant="default",
        agent_id="a",
        webhook_url="http://c.example",
        next_secret=sealer.seal(b"next", tenant="default", agent_id="a", field="next_secret"),
        require_v1=True,
        max_concurrency=2,
    )
    described = AgentDescribed(
        id=new_uuid7(),
        at=9,
        by="a",
        tenant="default",
        agent_id="a",
        description="says hello",
        input_schema=Raw(b'{"x": 1.0}'),
        output_schema=Raw(b"null"),
    )
    async with following(control):
        for each in (first, entry, described):
            await control.submit(each, timeout_seconds=SECONDS)

    agent = control.agent("default", "a")
    assert agent == Agent(
        tenant="default",
        agent_id="a",
        webhook_url="http://c.example",
        secrets=(b"first", b"next"),
        require_v1=True,
        max_concurrency=2,
        policy_version=0,
        description="says hello",
        input_schema=b'{"x": 1.0}',
        output_schema=b"null",
        registered_seq=1,
        registered_at=1,
        updated_at=9,
    )
    assert repr(agent) == "Agent(tenant='default', agent_id='a')"


async def test_agents_of_one_name_come_in_order_of_registration(control: Control, sealer: Sealer) -> None:
    async with following(control):
        for entry in (
            put(sealer, tenant="two"),
            put(sealer, tenant="one"),
            put(sealer, tenant="three"),
            put(sealer, "b", tenant="one"),
            put(sealer, tenant="two", text="changed"),
            deleted(tenant="one"),
            put(sealer, tenant="one"),
        ):
            await control.submit(entry, timeout_seconds=SECONDS)

    assert [agent.tenant for agent in control.agents_named("a")] == ["two", "three", "one"]
    assert [agent.agent_id for agent in control.agents("one")] == ["a", "b"]
    assert control.agents("nobody") == []
    assert control.agent("nobody", "a") is None


async def test_a_process_that_starts_later_knows_the_same(log: MemoryLog, control: Control, sealer: Sealer) -> None:
    async with following(control):
        for entry in (put(sealer), put(sealer, "b"), deleted()):
            await control.submit(entry, timeout_seconds=SECONDS)

    later = Control(log, sealer)
    async with following(later):
        assert later.seq == 3
        assert later.agents("default") == control.agents("default")


async def test_a_long_stream_is_read_in_pages(sealer: Sealer) -> None:
    log = MemoryLog(shards=1, limits=LogLimits(control_page_messages_max=3))
    for number in range(10):
        await append(log, encode_control(put(sealer, f"a{number}")))

    control = Control(log, sealer)
    async with following(control):
        assert len(control.agents("default")) == 10


# ---------------------------------------------------------------- changes that do not go through


async def test_a_refused_entry_raises_its_refusal(control: Control) -> None:
    entry = AgentPut(id=new_uuid7(), at=1, by="api", tenant="default", agent_id="a", webhook_url="https://b.example")
    async with following(control):
        with pytest.raises(Invalid) as caught:
            await control.submit(entry, timeout_seconds=SECONDS)
        assert caught.value.path == "secret"
        with pytest.raises(NotFound):
            await control.submit(deleted(), timeout_seconds=SECONDS)


async def test_submitting_the_same_entry_again_gives_its_first_answer(control: Control, sealer: Sealer) -> None:
    entry = put(sealer)
    async with following(control):
        assert await control.submit(entry, timeout_seconds=SECONDS) == Accepted(is_new=True)
        await control.submit(deleted(), timeout_seconds=SECONDS)

        assert await control.submit(entry, timeout_seconds=SECONDS) == Accepted(is_new=True)
        assert control.agent("default", "a") is None


async def test_an_entry_that_was_certainly_not_appended_is_unavailable(
    log: MemoryLog, control: Control, sealer: Sealer
) -> None:
    async with following(control):
        log.reject_full = True
        with pytest.raises(LogUnavailable) as caught:
            await control.submit(put(sealer), timeout_seconds=SECONDS)
        assert caught.value.reason == "log_full"
        log.go_offline()
        with pytest.raises(LogUnavailable):
            await control.submit(put(sealer), timeout_seconds=0.05)


async def test_an_entry_without_an_acknowledgement_is_answered_by_the_fold(
    log: MemoryLog, control: Control, sealer: Sealer
) -> None:
    log.drop_acks = True
    async with following(control):
        assert await control.submit(put(sealer), timeout_seconds=0.2) == Accepted(is_new=True)


async def test_an_entry_that_nobody_acknowledged_or_read_has_an_unknown_outcome(
    log: MemoryLog, control: Control, sealer: Sealer
) -> None:
    log.drop_acks = True

    with pytest.raises(OutcomeUnknown):
        await control.submit(put(sealer), timeout_seconds=0.05)


async def test_an_acknowledged_entry_that_cannot_be_read_back_has_an_unknown_outcome(
    log: DamagedLog, control: Control, sealer: Sealer
) -> None:
    log.lost_seqs = {1}

    with pytest.raises(OutcomeUnknown, match="not answered in time"):
        await control.submit(put(sealer), timeout_seconds=0.1)


async def test_an_entry_answered_long_ago_has_an_unknown_outcome(
    log: MemoryLog, control: Control, sealer: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel.control.control.ANSWERS_MAX", 1)
    entry = put(sealer)
    async with following(control):
        await control.submit(entry, timeout_seconds=SECONDS)
        await control.submit(put(sealer, "b"), timeout_seconds=SECONDS)

        with pytest.raises(OutcomeUnknown):
            await control.submit(entry, timeout_seconds=SECONDS)


async def test_an_entry_that_every_process_would_have_to_hold_is_bounded(control: Control) -> None:
    schema = Raw(b'"' + b"x" * ENTRY_BYTES_MAX + b'"')
    entry = AgentDescribed(
        id=new_uuid7(),
        at=1,
        by="a",
        tenant="default",
        agent_id="a",
        description=None,
        input_schema=schema,
        output_schema=Raw(b"null"),
    )

    with pytest.raises(TooLarge):
        await control.submit(entry, timeout_seconds=SECONDS)
    assert control.seq == 0


async def test_the_number_of_waiting_changes_is_bounded(log: MemoryLog, control: Control) -> None:
    log.go_offline()
    tasks = [asyncio.create_task(control.submit(deleted(), timeout_seconds=SECONDS)) for _ in range(SUBMISSIONS_MAX)]
    await loop_turns()

    with pytest.raises(Unavailable, match="too many"):
        await control.submit(deleted(), timeout_seconds=SECONDS)

    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    with pytest.raises(LogUnavailable):
        await control.submit(deleted(), timeout_seconds=0.01)


# ---------------------------------------------------------------- the number of shards


async def test_the_first_start_records_the_number_of_shards(
    log: MemoryLog, control: Control, sealer: Sealer, clock: Clock
) -> None:
    async with following(control):
        assert control.shards is None
        await control.ensure_shards(4)
        assert control.shards == 4
        await control.ensure_shards(4)
        assert control.seq == 1


async def test_another_number_is_refused_with_what_to_do(control: Control) -> None:
    async with following(control):
        await control.ensure_shards(4)

        with pytest.raises(Misconfigured, match=r"has 4 shards and STEPWELL_SHARDS is 8.*set STEPWELL_SHARDS=4"):
            await control.ensure_shards(8)
        assert control.shards == 4


async def test_of_two_first_starts_one_number_wins(log: MemoryLog, sealer: Sealer) -> None:
    controls = [Control(log, sealer, poll_seconds=POLL_SECONDS) for _ in range(2)]
    async with following(*controls):
        ends = await asyncio.gather(
            *(control.ensure_shards(shards) for control, shards in zip(controls, (4, 8), strict=True)),
            return_exceptions=True,
        )

    assert [end for end in ends if end is None] == [None]
    assert [type(end) for end in ends if end is not None] == [Misconfigured]
    assert controls[0].shards == controls[1].shards


async def test_a_cancelled_submission_leaves_the_following_whole(
    log: MemoryLog, control: Control, sealer: Sealer
) -> None:
    async with following(control):
        for number in range(20):
            task = asyncio.create_task(control.submit(put(sealer, f"a{number}"), timeout_seconds=SECONDS))
            await loop_turns(number)
            task.cancel()
            await asyncio.wait([task])
        await control.submit(put(sealer, "last"), timeout_seconds=SECONDS)

    assert control.seq == (await log.control_head())
    assert control.agent("default", "last") is not None
