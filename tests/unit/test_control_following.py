"""Control: the stream followed in memory, level or known not to be, and what ends the following."""

import asyncio

import pytest

from kernel.control.control import Control
from kernel.control.sealing import Sealer
from kernel.domain.errors import (
    InvariantBroken,
    Misconfigured,
    OutcomeUnknown,
    Unavailable,
)
from kernel.log.memory import MemoryLog
from schemas.control import AgentPut, encode_control
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


# ---------------------------------------------------------------- level or not


async def test_it_is_not_level_before_it_has_read(control: Control) -> None:
    assert not control.is_level
    with pytest.raises(Unavailable):
        await control.level(timeout_seconds=0.01)


async def test_it_is_level_for_a_second_after_it_was(log: MemoryLog, control: Control, clock: Clock) -> None:
    async with following(control):
        log.go_offline()
        await loop_turns()
        clock.now += 1.0
        assert control.is_level
        clock.now += 0.01
        assert not control.is_level
        with pytest.raises(Unavailable, match="cannot be followed"):
            await control.level(timeout_seconds=3 * POLL_SECONDS)

        log.come_back()
        await control.level(timeout_seconds=SECONDS)
        assert control.is_level


async def test_an_outage_is_told_once_and_so_is_its_end(
    log: MemoryLog, control: Control, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="kernel.control.control")
    async with following(control):
        log.go_offline()
        clock.now += 2
        with pytest.raises(Unavailable):
            await control.level(timeout_seconds=5 * POLL_SECONDS)
        log.come_back()
        await control.level(timeout_seconds=SECONDS)
        await wait_until_async(lambda: len(caplog.messages) == 2, "both lines")

    assert caplog.messages == [
        "the control stream cannot be read: not connected to the log",
        "level with the control stream again",
    ]


async def test_it_is_not_level_while_the_last_entry_cannot_be_read(
    log: DamagedLog, control: Control, sealer: Sealer, clock: Clock
) -> None:
    async with following(control):
        await control.submit(put(sealer), timeout_seconds=SECONDS)
        log.lost_seqs = {2}
        await append(log, encode_control(deleted()))
        clock.now += 2

        with pytest.raises(Unavailable):
            await control.level(timeout_seconds=5 * POLL_SECONDS)
    assert control.agent("default", "a") is not None


# ---------------------------------------------------------------- what ends the following


async def _end(control: Control) -> BaseException | None:
    """What `run` ends with."""
    return (await asyncio.wait_for(asyncio.gather(control.run(), return_exceptions=True), SECONDS))[0]


@pytest.mark.parametrize("payload", [b'{"type":"key_rotated","schema":1}', b'{"type":"shards_set","schema":2}'])
async def test_an_entry_of_a_later_build_stops_the_following(log: MemoryLog, control: Control, payload: bytes) -> None:
    async with following(control):
        assert control.is_level
    await append(log, payload)

    error = await _end(control)

    assert isinstance(error, Misconfigured)
    assert "upgrade this process" in str(error)
    assert not control.is_level
    with pytest.raises(Unavailable, match="any further"):
        await control.level(timeout_seconds=SECONDS)
    with pytest.raises(Unavailable, match="any further"):
        await control.submit(deleted(), timeout_seconds=SECONDS)
    assert await _end(control) is error


async def test_whoever_waits_to_be_level_is_told_that_it_never_will(log: MemoryLog, control: Control) -> None:
    await append(log, b"damaged")
    waiting = asyncio.create_task(control.level(timeout_seconds=SECONDS))
    await loop_turns()

    assert isinstance(await _end(control), InvariantBroken)
    with pytest.raises(Unavailable, match="any further"):
        await waiting


async def test_a_submission_that_meets_what_it_cannot_read_has_an_unknown_outcome(
    log: MemoryLog, control: Control, sealer: Sealer
) -> None:
    await append(log, b"damaged")

    with pytest.raises(OutcomeUnknown, match="any further"):
        await control.submit(put(sealer), timeout_seconds=SECONDS)
    assert isinstance(await _end(control), InvariantBroken)


async def test_a_missing_entry_stops_the_following(log: DamagedLog, control: Control, sealer: Sealer) -> None:
    for agent_id in ("a", "b"):
        await append(log, encode_control(put(sealer, agent_id)))
    log.lost_seqs = {1}

    assert "control entry 1 is missing" in str(await _end(control))


async def test_an_entry_that_is_late_is_waited_for(log: DamagedLog, control: Control, sealer: Sealer) -> None:
    for agent_id in ("a", "b", "c"):
        await append(log, encode_control(put(sealer, agent_id)))
    log.lost_seqs = {2}
    running = asyncio.create_task(control.run())
    try:
        await wait_until_async(lambda: control.seq == 1, "the entry before the hole")
        assert not control.is_level
        log.lost_seqs = set()
        await control.level(timeout_seconds=SECONDS)
        assert len(control.agents("default")) == 3
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_stream_that_went_back_stops_the_following(log: DamagedLog, control: Control, sealer: Sealer) -> None:
    async with following(control):
        await control.submit(put(sealer), timeout_seconds=SECONDS)
    log.is_anew = True

    assert "went back from entry 1 to 0" in str(await _end(control))


async def test_a_secret_under_another_master_key_stops_the_following(log: MemoryLog, control: Control) -> None:
    await append(log, encode_control(put(Sealer("another master key"))))

    error = await _end(control)

    assert isinstance(error, Misconfigured)
    assert control.agents("default") == []


async def test_a_secret_that_is_gone_needs_no_key(log: MemoryLog, control: Control) -> None:
    for entry in (put(Sealer("another master key")), deleted()):
        await append(log, encode_control(entry))

    async with following(control):
        assert control.agents("default") == []


async def test_a_replaced_entry_of_another_agent_is_never_taken_for_its_own(
    log: MemoryLog, control: Control, sealer: Sealer
) -> None:
    stolen = put(sealer, "a")
    moved = AgentPut(
        id=new_uuid7(),
        at=1,
        by="api",
        tenant="default",
        agent_id="b",
        webhook_url="https://evil.example",
        secret=stolen.secret,
    )
    await append(log, encode_control(stolen))
    await append(log, encode_control(moved))

    assert "cannot be unsealed" in str(await _end(control))


async def test_a_log_that_does_not_answer_leaves_it_not_level(
    log: DamagedLog, control: Control, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kernel.control.control.READ_SECONDS_MAX", 0.01)
    async with following(control):
        log.keeps_silent = True
        clock.now += 2
        with pytest.raises(Unavailable):
            await control.level(timeout_seconds=0.1)
        log.keeps_silent = False
        await control.level(timeout_seconds=SECONDS)

    assert "the log did not answer within 0.01 s" in caplog.text
