"""The streams of the log: as they must be, refused where they are not, and full without losing what they have."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.js import JetStreamContext

from kernel.domain.errors import LogUnavailable, Misconfigured
from kernel.embedded import embedded_nats, free_port
from kernel.log.jetstream import JetStreamLog
from kernel.log.limits import LogLimits
from schemas.ids import new_uuid7
from tests.contract.log_harness import SECONDS, append, outgoing, read_all

SHARDS = 2
SUBJECTS = {
    "STEPWELL_0": "stepwell.0.*.*",
    "STEPWELL_CONTROL": "stepwell.control.>",
    "STEPWELL_MARKS": "stepwell.marks.*",
}
STREAMS = ["STEPWELL_CONTROL", "STEPWELL_MARKS", "STEPWELL_0", "STEPWELL_1"]
TWO_MINUTES_NANOSECONDS = 120 * 1_000_000_000
MIB = 1024 * 1024


@pytest.fixture
def operator(fresh_nats: Client) -> JetStreamContext:
    return fresh_nats.jetstream()


@pytest_asyncio.fixture
async def log(fresh_nats: Client, nats_url: str) -> AsyncIterator[JetStreamLog]:
    log = await JetStreamLog.connect(nats_url, shards=SHARDS, name="streams")
    yield log
    await log.close()


async def raw_config(connection: Client, name: str) -> dict[str, Any]:
    """The configuration as the broker has it, with members that the client library does not know."""
    answer = await connection.request(f"$JS.API.STREAM.INFO.{name}")
    return json.loads(answer.data)["config"]


async def test_the_streams_keep_everything_in_files_and_refuse_what_does_not_fit(
    log: JetStreamLog, fresh_nats: Client
) -> None:
    await log.ensure_streams()

    for name in STREAMS:
        config = await raw_config(fresh_nats, name)
        assert config["storage"] == "file"
        assert config["retention"] == "limits"
        assert config["discard"] == "new"
        assert (config["max_age"], config["max_msgs"], config["max_bytes"]) == (0, -1, -1)
        assert config["max_msgs_per_subject"] == (1 if name == "STEPWELL_MARKS" else -1)
        assert config["allow_direct"] is True
        assert config["duplicate_window"] == TWO_MINUTES_NANOSECONDS
        assert config["num_replicas"] == 1
        assert 6 * MIB < config["max_msg_size"] < 8 * MIB
    assert (await raw_config(fresh_nats, "STEPWELL_1"))["subjects"] == ["stepwell.1.*.*"]
    assert (await raw_config(fresh_nats, "STEPWELL_CONTROL"))["subjects"] == ["stepwell.control.>"]


async def test_streams_that_are_there_are_kept_with_what_they_hold(log: JetStreamLog) -> None:
    await log.ensure_streams()
    await append(log, outgoing(b"kept"))
    before = await log.state(1)

    await asyncio.gather(*(log.ensure_streams() for _ in range(5)))

    after = await log.state(1)
    assert (after.created_at, after.last_seq) == (before.created_at, 1)


@pytest.mark.parametrize(
    ("name", "wrong", "named"),
    [
        ("STEPWELL_0", {"storage": "memory"}, "storage memory and needs file"),
        ("STEPWELL_0", {"discard": "old"}, "discard old and needs new"),
        ("STEPWELL_0", {"max_age": 3600.0}, "max_age"),
        ("STEPWELL_0", {"max_msgs": 1000}, "max_msgs 1000 and needs none"),
        ("STEPWELL_0", {"max_msgs_per_subject": 10}, "max_msgs_per_subject 10 and needs none"),
        ("STEPWELL_0", {"retention": "interest"}, "retention interest and needs limits"),
        ("STEPWELL_0", {"allow_direct": False}, "allow_direct False and needs True"),
        ("STEPWELL_0", {"duplicate_window": 60.0}, "duplicate_window"),
        ("STEPWELL_0", {"max_msg_size": 1024}, "max_msg_size 1024"),
        ("STEPWELL_0", {"no_ack": True}, "no_ack True and needs False"),
        ("STEPWELL_0", {"subjects": ["stepwell.0.acme.*"]}, "subjects"),
        ("STEPWELL_CONTROL", {"discard": "old"}, "discard old and needs new"),
        ("STEPWELL_MARKS", {"max_msgs_per_subject": 2}, "max_msgs_per_subject 2 and needs 1"),
        ("STEPWELL_MARKS", {}, "max_msgs_per_subject -1 and needs 1"),
    ],
)
async def test_a_stream_that_would_lose_entries_is_refused_by_name(
    log: JetStreamLog, operator: JetStreamContext, name: str, wrong: dict[str, Any], named: str
) -> None:
    subjects = SUBJECTS[name]
    right: dict[str, Any] = {
        "name": name,
        "subjects": [subjects],
        "discard": "new",
        "allow_direct": True,
        "duplicate_window": 120.0,
    }
    await operator.add_stream(**(right | wrong))

    with pytest.raises(Misconfigured) as caught:
        await log.ensure_streams()

    assert name in str(caught.value)
    assert named in str(caught.value)
    assert "nats stream edit" in str(caught.value)


async def test_a_limit_of_bytes_is_the_operators_to_set(log: JetStreamLog, operator: JetStreamContext) -> None:
    await operator.add_stream(
        name="STEPWELL_0",
        subjects=["stepwell.0.*.*"],
        discard="new",
        allow_direct=True,
        duplicate_window=300.0,
        max_bytes=10 * MIB,
    )

    await log.ensure_streams()

    assert (await operator.stream_info("STEPWELL_0")).config.max_bytes == 10 * MIB


async def test_subjects_that_another_stream_takes_are_told(log: JetStreamLog, operator: JetStreamContext) -> None:
    await operator.add_stream(name="EVERYTHING", subjects=["stepwell.>"])

    with pytest.raises(Misconfigured, match="overlap"):
        await log.ensure_streams()


async def test_a_server_that_takes_only_small_messages_is_refused(tmp_path: Path) -> None:
    async with embedded_nats(tmp_path / "nats", arguments=configured(tmp_path, max_payload="1MB")) as server:
        log = await JetStreamLog.connect(server.url, shards=SHARDS, name="small")
        try:
            with pytest.raises(Misconfigured, match="max_payload"):
                await log.ensure_streams()
        finally:
            await log.close()


async def test_a_server_that_is_not_there_is_told_in_time() -> None:
    url = f"nats://127.0.0.1:{free_port()}"

    with pytest.raises(LogUnavailable):
        await JetStreamLog.connect(url, name="nobody", limits=LogLimits(connect_seconds=0.3))


async def test_one_of_several_addresses_is_enough(nats_url: str) -> None:
    log = await JetStreamLog.connect(f"nats://127.0.0.1:{free_port()}, {nats_url}", name="several")

    assert log.is_connected
    await log.close()


async def test_a_stream_filled_to_the_brim_keeps_every_acknowledged_entry(
    log: JetStreamLog, operator: JetStreamContext, seed: int
) -> None:
    await log.ensure_streams()
    config = (await operator.stream_info("STEPWELL_0")).config
    await operator.update_stream(config.evolve(max_bytes=MIB))
    chance = random.Random(seed)
    stored: list[str] = []
    refusals, reasons = 0, set[str]()
    while refusals < 30:
        # Smaller and smaller ones find the last gap; tenants and ids make headers of different lengths.
        size = chance.randrange(1, max(2, 60_000 >> (refusals // 2)))
        tenant = "t" * chance.randint(1, 64)
        entry = outgoing(bytes(size), shard=0, tenant=tenant, entry_id=f"{new_uuid7()}{'i' * chance.randrange(90)}")
        try:
            await log.append(entry, timeout_seconds=SECONDS)
            stored.append(entry.entry_id)
        except LogUnavailable as error:
            refusals += 1
            reasons.add(error.reason)
        assert (await log.state(0)).first_seq == 1

    assert reasons == {"log_full"}
    assert len(stored) > 5
    assert [message.entry_id for message in await read_all(log, 0)] == stored
    assert (await append(log, outgoing(shard=1))).seq == 1

    await operator.update_stream(config.evolve(max_bytes=2 * MIB))
    assert (await append(log, outgoing(shard=0))).seq == len(stored) + 1


async def test_a_server_without_room_is_a_full_log_until_room_returns(tmp_path: Path) -> None:
    arguments = configured(tmp_path, max_file_store="2MB")
    async with embedded_nats(tmp_path / "nats", arguments=arguments) as server:
        log = await JetStreamLog.connect(server.url, shards=SHARDS, name="no room")
        try:
            await log.ensure_streams()
            await append(log, outgoing(bytes(MIB), shard=0))
            await append(log, outgoing(bytes(MIB), shard=1))

            # The server notices once it is over.
            with pytest.raises(LogUnavailable) as caught:
                await append(log, outgoing(bytes(MIB), shard=1))
            assert caught.value.reason == "log_full"
            assert [(await log.state(shard)).last_seq for shard in range(SHARDS)] == [1, 1]

            await log.connection.request("$JS.API.STREAM.PURGE.STEPWELL_0")
            assert (await append(log, outgoing(bytes(MIB // 2), shard=1))).seq == 2
        finally:
            await log.close()


def configured(folder: Path, *, max_payload: str = "8MiB", max_file_store: str = "1GB") -> tuple[str, str]:
    """Arguments for a server with settings other than the shipped ones."""
    path = folder / "other.conf"
    path.write_text(
        f"max_payload: {max_payload}\n"
        f"jetstream {{ store_dir: $STEPWELL_NATS_STORE, sync_interval: always, max_file_store: {max_file_store} }}\n",
        encoding="ascii",
    )
    return "-c", str(path)
