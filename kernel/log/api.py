"""What JetStream says, decoded: acknowledgements, the state of a stream, a new consumer, times."""

from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from kernel.domain.errors import LogUnavailable
from kernel.log.connection import Connection
from kernel.log.driver import Delivery
from kernel.ports import Acknowledged, Rejected

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_NO_RESPONDERS = "503"
_STREAM_NOT_FOUND = 10059
_STORE_FAILED = 10077
# Insufficient resources, account limit, memory limit, storage limit.
_NO_ROOM = frozenset({10002, 10023, 10028, 10047})
_FULL_WORDS = ("maximum bytes exceeded", "maximum messages exceeded")
_BAD_REQUEST = 400


class Fault(msgspec.Struct, frozen=True, gc=False):
    """The error of an answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What every answer of the API may be instead of what was asked for."""

    error: Fault | None = None


class _PublishAnswer(Answer, frozen=True):
    seq: int = 0
    duplicate: bool = False


class StreamState(msgspec.Struct, frozen=True, gc=False):
    messages: int
    first_seq: int
    last_seq: int


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a stream that the kernel relies on. Ages are nanoseconds; -1 is no limit."""

    name: str
    subjects: tuple[str, ...] = ()
    retention: str = "limits"
    storage: str = "file"
    discard: str = "old"
    max_age: int = 0
    max_msgs: int = -1
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    duplicate_window: int = 0
    num_replicas: int = 1
    allow_direct: bool = False
    no_ack: bool = False
    sealed: bool = False
    persist_mode: str = ""
    mirror: dict[str, object] | None = None
    sources: tuple[dict[str, object], ...] | None = None
    subject_transform: dict[str, object] | None = None


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as it is. `ts` is the broker's clock at the answer."""

    config: StreamConfig
    created: str
    state: StreamState
    ts: str


class NewConsumer(msgspec.Struct, frozen=True):
    """`num_pending` counts the messages that the consumer will deliver of those that are there."""

    name: str
    num_pending: int


T = TypeVar("T")

_publish_answers = msgspec.json.Decoder(_PublishAnswer)
_answers = msgspec.json.Decoder(Answer)


def read_acknowledgement(delivery: Delivery) -> Acknowledged | Rejected | None:
    """Return what the broker said of a publish; None where that leaves open whether the entry is in the log.

    A store that fails in the middle of writing may find the message again when it recovers, so only what the broker
    checks before it writes counts as a refusal.
    """
    if delivery.status == _NO_RESPONDERS:
        return Rejected(reason="no stream stores this subject", is_full=False)
    try:
        answer = _publish_answers.decode(delivery.data)
    except msgspec.DecodeError:
        return None
    fault = answer.error
    if fault is None:
        return Acknowledged(seq=answer.seq, is_duplicate=answer.duplicate) if answer.seq > 0 else None
    if fault.err_code in _NO_ROOM or (fault.err_code == _STORE_FAILED and fault.description in _FULL_WORDS):
        return Rejected(reason=fault.description, is_full=True)
    return Rejected(reason=fault.description, is_full=False) if fault.code == _BAD_REQUEST else None


async def call(connection: Connection, endpoint: str, body: object, answer_type: type[T]) -> T:
    """Ask the JetStream API. Raises LogUnavailable with the broker's own words where it refuses."""
    payload = b"" if body is None else msgspec.json.encode(body)
    delivery = await connection.request(f"$JS.API.{endpoint}", payload)
    try:
        fault = _answers.decode(delivery.data).error
        if fault is None:
            return msgspec.json.decode(delivery.data, type=answer_type)
    except msgspec.DecodeError as error:
        raise LogUnavailable(f"the broker's answer to {endpoint} cannot be read: {error}") from error
    raise _refusal(endpoint, fault)


async def stream_info(connection: Connection, stream: str) -> StreamInfo:
    return await call(connection, f"STREAM.INFO.{stream}", None, StreamInfo)


def unix_microseconds(text: str) -> int:
    """Return the time that an RFC 3339 text names; digits beyond the microsecond are cut off."""
    return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND


class StreamMissing(LogUnavailable):
    """The broker has no such stream."""


class Refusal(LogUnavailable):
    """The API refused what it was asked. `err_code` is the broker's; `is_final`: asking again does not help."""

    def __init__(self, message: str, fault: Fault) -> None:
        super().__init__(message)
        self.err_code = fault.err_code
        self.is_final = fault.code == _BAD_REQUEST


def _refusal(endpoint: str, fault: Fault) -> LogUnavailable:
    message = f"the broker refuses {endpoint}: {fault.description}"
    return StreamMissing(message) if fault.err_code == _STREAM_NOT_FOUND else Refusal(message, fault)
