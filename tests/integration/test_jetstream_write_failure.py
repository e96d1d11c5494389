"""What NATS does after a write to its disk has failed, and that the log says so until the restart that mends it."""

import resource

import pytest

from kernel.domain.errors import LogUnavailable, OutcomeUnknown
from kernel.embedded import EmbeddedServer
from kernel.log.jetstream import JetStreamLog
from kernel.log.limits import LogLimits
from kernel.ports import Outgoing
from schemas.ids import DEFAULT_TENANT, new_uuid7
from tests.support.wait import wait_until_async

LIMITS = LogLimits(silence_of_acknowledgements_seconds=0.4, silence_probe_seconds=0.1, republish_seconds=0.1)


def entry() -> Outgoing:
    return Outgoing(0, DEFAULT_TENANT, new_uuid7(), new_uuid7(), b"{}", reply_to="")


async def test_a_stream_that_could_not_write_is_silent_until_the_broker_is_restarted(
    private_nats: EmbeddedServer,
) -> None:
    log = await JetStreamLog.connect(private_nats.url, shards=2, name="test", limits=LIMITS)
    try:
        await log.ensure_streams()
        kept = await log.append(entry(), timeout_seconds=5)
        # The broker writes no file beyond its first byte, as on a disk that is full.
        resource.prlimit(private_nats.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        lost = entry()
        with pytest.raises(OutcomeUnknown):
            await log.append(lost, timeout_seconds=1)
        assert log.is_connected
        assert log.is_silent(0)
        assert not log.is_silent(1)
        assert (await log.state(0)).last_seq == kept.seq

        # There is room again, and NATS answers all the same nothing: not even probes.
        resource.prlimit(private_nats.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        probes: list[int] = []
        refusals: list[int] = []

        def are_probes_sent() -> bool:
            try:
                log.send(lost, lambda _: None)
            except LogUnavailable:
                refusals.append(len(probes))
            else:
                probes.append(len(refusals))
            return len(probes) >= 5

        await wait_until_async(are_probes_sent, "a few probes", deadline_seconds=10)
        assert len(refusals) >= 4
        assert log.is_silent(0)
        assert (await log.append(shard_one(), timeout_seconds=5)).seq == 1

        await private_nats.restart()
        await wait_until_async(lambda: log.is_connected, "the connection to come back")
        assert not log.is_silent(0)
        assert (await log.append(lost, timeout_seconds=5)).seq == kept.seq + 1
    finally:
        await log.close()


def shard_one() -> Outgoing:
    return Outgoing(1, DEFAULT_TENANT, new_uuid7(), new_uuid7(), b"{}", reply_to="")
