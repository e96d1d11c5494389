"""Messages of a shard, as a consumer delivers them and as a direct read finds them."""

from collections.abc import Mapping

import msgspec

from kernel.domain.errors import LogUnavailable
from kernel.log.api import Answer, Refusal, call, stream_info, unix_microseconds
from kernel.log.connection import Connection
from kernel.log.driver import Delivery
from kernel.log.naming import CHECKSUM_HEADER, ENTRY_ID_HEADER, EXECUTION_HEADER, REPLY_HEADER, tenant_of
from kernel.ports import LogMessage, LogState

_NOT_FOUND = "404"
_NO_MESSAGE = 10037
_ACK_PREFIX = "$JS.ACK."
_ACK_TOKENS = 9
_ACK_TOKENS_WITH_DOMAIN = 11
_DOMAIN_TOKENS = 2
_NANOSECONDS_IN_A_MICROSECOND = 1000


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a delivered message stands: in its stream, and in the order of its consumer from 1."""

    stream_seq: int
    consumer_seq: int
    stored_at: int


def read_place(reply: str) -> Place | None:
    """Return the place that a delivery's reply subject spells, None where it spells none.

    `$JS.ACK.[domain.account.]stream.consumer.deliveries.stream seq.consumer seq.nanoseconds.pending[.random]`
    """
    if not reply.startswith(_ACK_PREFIX):
        return None
    tokens = reply.split(".")
    if len(tokens) >= _ACK_TOKENS_WITH_DOMAIN:
        tokens = tokens[_DOMAIN_TOKENS:]
    if len(tokens) < _ACK_TOKENS:
        return None
    try:
        return Place(int(tokens[5]), int(tokens[6]), int(tokens[7]) // _NANOSECONDS_IN_A_MICROSECOND)
    except ValueError:
        return None


def delivered_message(shard: int, place: Place, delivery: Delivery) -> LogMessage:
    return _message(shard, place.stream_seq, place.stored_at, delivery.subject, delivery.headers, delivery.data)


async def read_direct(connection: Connection, stream: str, seq: int) -> Delivery | None:
    """Return what the stream holds at a sequence, None where it holds nothing. Raises LogUnavailable."""
    delivery = await connection.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":%d}' % seq)
    if delivery.status == _NOT_FOUND:
        await _confirm_missing(connection, stream, {"seq": seq})
        return None
    if delivery.status or delivery.headers.get("Nats-Sequence") != str(seq):
        raise LogUnavailable(f"the broker cannot read {stream} at {seq}: status {delivery.status or 'none'}")
    return delivery


async def read_last(connection: Connection, stream: str, subject: str) -> Delivery | None:
    """Return the last message of a subject, None where there is none. Raises LogUnavailable."""
    asked = msgspec.json.encode({"last_by_subj": subject})
    delivery = await connection.request(f"$JS.API.DIRECT.GET.{stream}", asked)
    if delivery.status == _NOT_FOUND:
        await _confirm_missing(connection, stream, {"last_by_subj": subject})
        return None
    if delivery.status or delivery.headers.get("Nats-Subject") != subject:
        raise LogUnavailable(f"the broker cannot read {subject}: status {delivery.status or 'none'}")
    return delivery


async def drop_message(connection: Connection, stream: str, seq: int) -> None:
    """Remove a message; one that is not there is no error. Raises LogUnavailable."""
    try:
        # Its bytes are not overwritten first: that costs a pass over them, and no secret is kept from a disk by it.
        await call(connection, f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": True}, Answer)
    except Refusal:
        if await read_direct(connection, stream, seq) is not None:
            raise


async def read_state(connection: Connection, stream: str) -> LogState:
    """Return where a stream begins and ends. Raises LogUnavailable."""
    info = await stream_info(connection, stream)
    last_seq = info.state.last_seq
    return LogState(
        created_at=info.created,
        first_seq=info.state.first_seq if info.state.messages else last_seq + 1,
        last_seq=last_seq,
        broker_time=unix_microseconds(info.ts),
    )


async def _confirm_missing(connection: Connection, stream: str, asked: Mapping[str, object]) -> None:
    """Ask the stream's leader, too: any replica answers direct reads, and one may lag. Raises LogUnavailable then."""
    try:
        await call(connection, f"STREAM.MSG.GET.{stream}", asked, Answer)
    except Refusal as refusal:
        if refusal.err_code == _NO_MESSAGE:
            return
        raise
    raise LogUnavailable(f"a replica of {stream} does not have {asked} yet")


def direct_message(shard: int, seq: int, delivery: Delivery) -> LogMessage:
    """Return a message read by `read_direct`. Raises LogUnavailable where the broker did not say when it was stored."""
    headers = delivery.headers
    try:
        stored_at = unix_microseconds(headers["Nats-Time-Stamp"])
    except (KeyError, ValueError) as error:
        raise LogUnavailable("the broker's direct read has no time that can be read") from error
    return _message(shard, seq, stored_at, headers.get("Nats-Subject", ""), headers, delivery.data)


def _message(
    shard: int, seq: int, stored_at: int, subject: str, headers: Mapping[str, str], payload: bytes
) -> LogMessage:
    return LogMessage(
        shard=shard,
        seq=seq,
        stored_at=stored_at,
        tenant=tenant_of(subject),
        entry_id=headers.get(ENTRY_ID_HEADER, ""),
        execution_id=headers.get(EXECUTION_HEADER, ""),
        checksum=headers.get(CHECKSUM_HEADER, ""),
        reply_to=headers.get(REPLY_HEADER, ""),
        payload=payload,
    )
