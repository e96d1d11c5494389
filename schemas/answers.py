"""Answers: what the fold says to the one who appended an entry. The door turns them into HTTP."""

from typing import Literal

import msgspec

from schemas.bodies import Body

DecisionWord = Literal[
    "proceed", "replay", "denied", "rate_limited", "blocked", "execution_blocked", "execution_terminal"
]
RefusalCode = Literal[
    "validation_error",
    "not_found",
    "conflict",
    "execution_terminal",
    "lease_superseded",
    "rate_limited",
    "unavailable",
    "forbidden",
]


class Created(msgspec.Struct, frozen=True, tag="created", array_like=True):
    """The execution that a create made, or that its key already had."""

    execution_id: str
    is_replayed: bool = False


class Decided(msgspec.Struct, frozen=True, tag="decided", array_like=True):
    """The decision on a submission."""

    decision: DecisionWord
    step_id: str = ""
    result: Body | None = None
    error: Body | None = None
    approval_id: str = ""
    reason: str = ""
    rule_id: str = ""
    is_replayed: bool = False
    is_new: bool = False
    """Whether it recorded a step that was not there before."""


class Recorded(msgspec.Struct, frozen=True, tag="recorded", array_like=True):
    """The fate of a step's outcome; result or error only with `replay`."""

    decision: Literal["recorded", "replay", "execution_terminal"]
    result: Body | None = None
    error: Body | None = None
    is_replayed: bool = False


class Done(msgspec.Struct, frozen=True, tag="done", array_like=True):
    """Accepted, nothing to say (204)."""

    is_replayed: bool = False


class Claimed(msgspec.Struct, frozen=True, tag="claimed", array_like=True):
    """The attempt is `claimed_by`'s, the name in the claim that was accepted: nobody else's with that entry id."""

    claimed_by: str


class Refusal(msgspec.Struct, frozen=True, tag="refusal", array_like=True):
    """Refused without a trace. `field` names the offending field or noun, `detail` what `details` holds."""

    code: RefusalCode
    message: str
    detail_name: str = ""
    detail: str = ""


class DecidedBefore(msgspec.Struct, frozen=True, tag="decided_before", array_like=True):
    """An approval was not pending any more: who won, and when (unix microseconds)."""

    status: Literal["granted", "denied", "expired"]
    decided_by: str
    decided_at: int


class Ignored(msgspec.Struct, frozen=True, tag="ignored", array_like=True):
    """A system entry that no longer matched the state: it changed nothing."""


AnyAnswer = Created | Decided | Recorded | Done | Claimed | Refusal | DecidedBefore | Ignored

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyAnswer)


def encode_answer(answer: AnyAnswer) -> bytes:
    """Return the bytes of the answer as it is stored and sent."""
    return _encoder.encode(answer)


def decode_answer(raw: bytes) -> AnyAnswer:
    """Return the answer; raises msgspec.DecodeError on anything that is not one."""
    return _decoder.decode(raw)


class AnswerBatch(msgspec.Struct, frozen=True, array_like=True):
    """Answers of one batch to one door: pairs of entry id and encoded answer, with the watermark they need."""

    shard: int
    watermark_seq: int
    answers: tuple[tuple[str, bytes], ...]


_batch_decoder = msgspec.msgpack.Decoder(AnswerBatch)


def encode_batch(batch: AnswerBatch) -> bytes:
    """Return the bytes of one wake-up message."""
    return _encoder.encode(batch)


def decode_batch(raw: bytes) -> AnswerBatch:
    """Return the wake-up message; raises msgspec.DecodeError on anything that is not one."""
    return _batch_decoder.decode(raw)
