"""The parts of the log that need no broker: answers, places, times, waiting replies, the backlog."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.errors import InvariantBroken, LogUnavailable
from kernel.log.api import read_acknowledgement, unix_microseconds
from kernel.log.backlog import Backlog
from kernel.log.driver import Delivery
from kernel.log.limits import LogLimits
from kernel.log.messages import Place, read_place
from kernel.log.naming import entry_headers, entry_subject, message_bytes, piece_subject, tenant_of
from kernel.log.replies import Replies
from kernel.ports import Acknowledged, LogMessage, Outgoing, Rejected

EXECUTION = "01920000-0000-7000-8000-0000000000ff"


def delivery(data: bytes = b"", *, subject: str = "inbox.1", headers: dict[str, str] | None = None) -> Delivery:
    return Delivery(subject=subject, reply="", data=data, headers=headers or {})


def message(seq: int, payload: bytes = b"") -> LogMessage:
    return LogMessage(
        shard=0,
        seq=seq,
        stored_at=0,
        tenant="acme",
        entry_id="",
        execution_id="",
        checksum="",
        reply_to="",
        payload=payload,
    )


# ---------------------------------------------------------------- what the broker says of a publish


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b'{"stream":"S","seq":7}', Acknowledged(seq=7, is_duplicate=False)),
        (b'{"stream":"S","seq":7,"duplicate": true}', Acknowledged(seq=7, is_duplicate=True)),
        (
            b'{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"seq":0}',
            Rejected(reason="maximum bytes exceeded", is_full=True),
        ),
        (
            b'{"error":{"code":503,"err_code":10023,"description":"insufficient resources"}}',
            Rejected(reason="insufficient resources", is_full=True),
        ),
        (
            b'{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}',
            Rejected(reason="message size exceeds maximum allowed", is_full=False),
        ),
    ],
)
def test_an_answer_to_a_publish_is_read(said: bytes, expected: Acknowledged | Rejected) -> None:
    assert read_acknowledgement(delivery(said)) == expected


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{}",
        b"+ACK",
        b'{"seq":0}',
        # The store may have written it before it failed.
        b'{"error":{"code":503,"err_code":10077,"description":"write /x: input/output error"}}',
        b'{"error":{"code":500,"err_code":10049,"description":"anything"}}',
    ],
)
def test_an_answer_that_leaves_the_outcome_open_is_no_answer(said: bytes) -> None:
    assert read_acknowledgement(delivery(said)) is None


def test_where_no_stream_listens_the_publish_is_refused() -> None:
    said = read_acknowledgement(delivery(headers={"Status": "503"}))

    assert isinstance(said, Rejected)
    assert not said.is_full


# ---------------------------------------------------------------- places and times


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.STEPWELL_0.follower.1.12.5.1796001289315874872.3",
        "$JS.ACK.hub.ACCOUNT.STEPWELL_0.follower.1.12.5.1796001289315874872.3",
        "$JS.ACK.hub.ACCOUNT.STEPWELL_0.follower.1.12.5.1796001289315874872.3.random",
    ],
)
def test_the_place_of_a_delivery_is_read_in_every_spelling(reply: str) -> None:
    assert read_place(reply) == Place(stream_seq=12, consumer_seq=5, stored_at=1796001289315874)


@pytest.mark.parametrize("reply", ["", "_INBOX.a.1", "$JS.ACK.a.b", "$JS.ACK.s.c.1.x.y.z.0", "$JS.FC.s.c.XyZ"])
def test_what_is_no_place_is_not_taken_for_one(reply: str) -> None:
    assert read_place(reply) is None


@given(st.integers(min_value=0, max_value=4_000_000_000_000_000_000))
def test_a_time_in_nanoseconds_loses_nothing_but_the_nanoseconds(nanoseconds: int) -> None:
    whole = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=nanoseconds // 10**9)
    fraction = f"{nanoseconds % 10**9:09}".rstrip("0")
    text = whole.strftime("%Y-%m-%dT%H:%M:%S") + (f".{fraction}" if fraction else "") + "Z"

    assert unix_microseconds(text) == nanoseconds // 1000


# ---------------------------------------------------------------- names


def test_a_subject_names_shard_tenant_and_bucket() -> None:
    assert entry_subject(3, "acme", EXECUTION) == "stepwell.3.acme.255"
    assert tenant_of("stepwell.3.acme.255") == "acme"


def test_the_subject_of_a_piece_of_a_body_names_them_too() -> None:
    assert piece_subject(3, "acme", EXECUTION) == "stepwell.bodies.3.acme.255"
    assert tenant_of("stepwell.bodies.3.acme.255") == "acme"


@pytest.mark.parametrize("subject", ["", "stepwell.3.acme", "stepwell.3.a.b.255", "stepwell.bodies.3.acme", "other"])
def test_a_subject_of_another_shape_names_no_tenant(subject: str) -> None:
    assert tenant_of(subject) == ""


@pytest.mark.parametrize("tenant", ["", "*", ">", "a.b", "a b"])
def test_a_subject_without_a_tenant_cannot_be_built(tenant: str) -> None:
    with pytest.raises(InvariantBroken):
        entry_subject(0, tenant, EXECUTION)


def test_the_size_of_a_message_is_counted_as_the_broker_does() -> None:
    headers = entry_headers(
        Outgoing(shard=0, tenant="acme", execution_id=EXECUTION, entry_id="e1", payload=b"12345", reply_to="p1")
    )
    written = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"

    assert message_bytes(headers, b"12345") == len(written) + 5


# ---------------------------------------------------------------- waiting replies


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_is_heard_once() -> None:
    replies, heard = Replies(count_max=10, seconds_max=30, clock=Clock()), list[Delivery]()
    answer = delivery(subject=replies.expect(heard.append))

    replies.hear(answer)
    replies.hear(answer)

    assert heard == [answer]
    assert replies.waiting == 0


def test_no_more_wait_than_are_allowed() -> None:
    replies = Replies(count_max=2, seconds_max=30, clock=Clock())
    first = replies.expect(lambda _: None)
    replies.expect(lambda _: None)
    with pytest.raises(LogUnavailable):
        replies.expect(lambda _: None)

    replies.forget(first)

    assert replies.expect(lambda _: None) != first


def test_whoever_waits_too_long_is_forgotten_and_never_called() -> None:
    clock, heard = Clock(), list[Delivery]()
    replies = Replies(count_max=2, seconds_max=30, clock=clock)
    old = replies.expect(heard.append)
    clock.now = 20
    young = replies.expect(heard.append)
    clock.now = 30

    replies.expect(heard.append)
    replies.hear(delivery(subject=old))
    replies.hear(delivery(subject=young))

    assert [answer.subject for answer in heard] == [young]


# ---------------------------------------------------------------- the backlog


async def test_a_backlog_is_over_at_its_bounds_and_eased_at_half_of_them() -> None:
    backlog = Backlog(after_seq=0, limits=LogLimits(follow_messages_max=4, follow_bytes_max=100))
    backlog.put(message(1, b"x" * 10))
    backlog.put(message(2, b"x" * 40))
    assert backlog.is_eased

    backlog.put(message(3, b"x"))
    assert not backlog.is_eased
    assert not backlog.is_over

    backlog.put(message(4, b"x" * 60))
    assert backlog.is_over

    taken = await backlog.take(messages_max=2, bytes_max=1000, wait_seconds=0)
    assert [one.seq for one in taken] == [1, 2]
    assert not backlog.is_eased
    await backlog.take(messages_max=1, bytes_max=1000, wait_seconds=0)
    await backlog.take(messages_max=1, bytes_max=1, wait_seconds=0)
    assert backlog.is_eased
    await backlog.wait_eased()
    assert backlog.received_seq == 4
