"""The streams as they must be: made where they are missing, checked where they are there."""

import asyncio
from collections.abc import Iterable, Iterator

from kernel.domain.errors import LogUnavailable, Misconfigured
from kernel.log.api import Refusal, StreamConfig, StreamInfo, call, stream_info
from kernel.log.connection import Connection
from kernel.log.naming import (
    CONTROL_STREAM,
    CONTROL_SUBJECTS,
    MARKS_STREAM,
    MARKS_SUBJECTS,
    bodies_stream,
    bodies_subjects,
    stream_name,
    stream_subjects,
)

DUPLICATE_WINDOW_SECONDS = 120
_NANOSECONDS_IN_A_SECOND = 1_000_000_000
_NAME_IN_USE = 10058
_CREATE_PAUSE_SECONDS = 0.2
_UNLIMITED = -1

_HOW_TO_MEND = (
    "the log would lose entries or refuse reads; correct it with `nats stream edit`, or, where that is refused, back "
    "the stream up, delete it and start again"
)


async def ensure_streams(connection: Connection, *, shards: int, timeout_seconds: float) -> None:
    """Make what is missing, check what is there. Raises Misconfigured, LogUnavailable when the time is up."""
    tries = _Tries()
    try:
        async with asyncio.timeout(timeout_seconds):
            for name, subjects in _all_streams(shards):
                await _ensure(connection, name, subjects, tries)
    except TimeoutError as error:
        reason = f"within {timeout_seconds:g} s: {tries.failure}"
        raise LogUnavailable(f"the streams of the log could not be checked {reason}") from error


class _Tries:
    """Why the last try failed, for whoever runs out of time."""

    failure = "not connected to the log"


def _all_streams(shards: int) -> Iterator[tuple[str, str]]:
    yield CONTROL_STREAM, CONTROL_SUBJECTS
    if shards:
        yield MARKS_STREAM, MARKS_SUBJECTS
    for shard in range(shards):
        yield stream_name(shard), stream_subjects(shard)
        yield bodies_stream(shard), bodies_subjects(shard)


async def _ensure(connection: Connection, name: str, subjects: str, tries: _Tries) -> None:
    while True:
        await connection.wait_connected()
        try:
            return await _create_or_check(connection, name, subjects)
        except LogUnavailable as error:
            if isinstance(error, Refusal) and error.is_final:
                raise Misconfigured(f"the stream {name} cannot be made: {error}") from error
            # The broker has just started, or is gone again: the caller's deadline ends it.
            tries.failure = str(error)
            await asyncio.sleep(_CREATE_PAUSE_SECONDS)


async def _create_or_check(connection: Connection, name: str, subjects: str) -> None:
    _check_payload_max(connection)
    wanted = StreamConfig(
        name=name,
        subjects=(subjects,),
        retention="limits",
        storage="file",
        discard="new",
        max_age=0,
        max_msgs=_UNLIMITED,
        # A mark takes the place of the one before; of everything else nothing is ever replaced.
        max_msgs_per_subject=1 if name == MARKS_STREAM else _UNLIMITED,
        max_msg_size=connection.message_bytes_max,
        duplicate_window=DUPLICATE_WINDOW_SECONDS * _NANOSECONDS_IN_A_SECOND,
        num_replicas=1,
        allow_direct=True,
    )
    try:
        await call(connection, f"STREAM.CREATE.{name}", _request(wanted), StreamInfo)
    except Refusal as error:
        if error.err_code != _NAME_IN_USE:
            raise
        found = await stream_info(connection, name)
        _check(found.config, wanted, entry_bytes_max=connection.limits.entry_bytes_max)


def _request(wanted: StreamConfig) -> dict[str, object]:
    """Return the configuration without the members that a broker may not know, or takes as a wish."""
    return {
        "name": wanted.name,
        "subjects": wanted.subjects,
        "retention": wanted.retention,
        "storage": wanted.storage,
        "discard": wanted.discard,
        "max_age": wanted.max_age,
        "max_msgs": wanted.max_msgs,
        "max_msgs_per_subject": wanted.max_msgs_per_subject,
        "max_bytes": _UNLIMITED,
        "max_msg_size": wanted.max_msg_size,
        "duplicate_window": wanted.duplicate_window,
        "num_replicas": wanted.num_replicas,
        "allow_direct": wanted.allow_direct,
    }


def _check_payload_max(connection: Connection) -> None:
    limits = connection.limits
    if connection.is_connected and connection.message_bytes_max < limits.entry_bytes_max:
        reserve = limits.message_reserve_bytes
        raise Misconfigured(
            f"the NATS server takes messages of {connection.message_bytes_max + reserve} bytes and "
            f"{limits.entry_bytes_max + reserve} are needed: set max_payload in its configuration, as deploy/nats.conf "
            "does"
        )


def _check(found: StreamConfig, wanted: StreamConfig, *, entry_bytes_max: int) -> None:
    """Raise Misconfigured naming everything that is wrong. A byte limit and replicas are the operator's to choose."""
    wrong = list(_differences(found, wanted, entry_bytes_max))
    if wrong:
        raise Misconfigured(f"the stream {found.name} has {'; '.join(wrong)}: {_HOW_TO_MEND}")


def _differences(found: StreamConfig, wanted: StreamConfig, entry_bytes_max: int) -> Iterable[str]:
    for field in ("subjects", "retention", "storage", "discard", "max_age", "allow_direct", "no_ack", "sealed"):
        is_, must_be = getattr(found, field), getattr(wanted, field)
        if is_ != must_be:
            yield f"{field} {is_} and needs {must_be}"
    if found.max_msgs > 0:
        yield f"max_msgs {found.max_msgs} and needs none"
    if found.max_msgs_per_subject != wanted.max_msgs_per_subject and max(found.max_msgs_per_subject, 0) + max(
        wanted.max_msgs_per_subject, 0
    ):
        needed = "none" if wanted.max_msgs_per_subject == _UNLIMITED else wanted.max_msgs_per_subject
        yield f"max_msgs_per_subject {found.max_msgs_per_subject} and needs {needed}"
    if 0 <= found.max_msg_size < entry_bytes_max:
        yield f"max_msg_size {found.max_msg_size} and needs {wanted.max_msg_size}"
    if found.duplicate_window < wanted.duplicate_window:
        yield f"duplicate_window {found.duplicate_window} ns and needs {wanted.duplicate_window}"
    if found.persist_mode == "async":
        yield "persist_mode async, which acknowledges what is not on the disk"
    for field in ("mirror", "sources", "subject_transform"):
        if getattr(found, field):
            yield f"{field}, which lets other messages in"
