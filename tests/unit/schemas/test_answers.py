"""Answers: stored and sent as they are, in the seven words of the contract and no other."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.answers import (
    AnswerBatch,
    AnyAnswer,
    Claimed,
    Created,
    Decided,
    DecisionWord,
    Done,
    Ignored,
    Recorded,
    Refusal,
    decode_answer,
    decode_batch,
    encode_answer,
    encode_batch,
)
from tests.unit.schemas.strategies import values_of

ANSWER_TYPES: tuple[type[Any], ...] = get_args(AnyAnswer)


@pytest.mark.parametrize("answer_type", ANSWER_TYPES, ids=lambda answer_type: answer_type.__name__)
@given(data=st.data())
def test_an_answer_is_read_as_it_was_written(answer_type: type[Any], data: st.DataObject) -> None:
    answer = data.draw(values_of(answer_type))
    read = decode_answer(encode_answer(answer))
    assert read == answer
    assert type(read) is answer_type


@given(values_of(AnswerBatch))
def test_a_batch_is_read_as_it_was_written(batch: AnswerBatch) -> None:
    assert decode_batch(encode_batch(batch)) == batch


def test_a_batch_carries_answers_that_can_be_read() -> None:
    answers = (Created("e"), Done(), Claimed("me"), Ignored(), Refusal("conflict", "no"), Recorded("recorded"))
    batch = AnswerBatch(
        shard=3, watermark_seq=9, answers=tuple((str(n), encode_answer(a)) for n, a in enumerate(answers))
    )
    read = decode_batch(encode_batch(batch))
    assert tuple(decode_answer(raw) for _, raw in read.answers) == answers
    assert [entry_id for entry_id, _ in read.answers] == ["0", "1", "2", "3", "4", "5"]


def test_the_decisions_are_the_seven_words_of_the_contract() -> None:
    words = "proceed replay denied rate_limited blocked execution_blocked execution_terminal"
    assert list(get_args(DecisionWord)) == words.split()


def test_another_word_is_no_decision() -> None:
    raw = encode_answer(Decided(decision="proceed")).replace(b"proceed", b"perhaps")
    with pytest.raises(msgspec.ValidationError):
        decode_answer(raw)


@pytest.mark.parametrize("raw", [b"", b"\xc1", msgspec.msgpack.encode(["vanished"]), msgspec.msgpack.encode({"a": 1})])
def test_what_is_not_an_answer_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_answer(raw)


@pytest.mark.parametrize("raw", [b"", msgspec.msgpack.encode([1, 2]), msgspec.msgpack.encode([1, 2, [["id"]]])])
def test_what_is_not_a_batch_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_batch(raw)
