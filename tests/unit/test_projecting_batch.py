"""From messages to a batch: what is damaged is parked, and what was not loaded is never guessed."""

import msgspec
import pytest

from kernel.domain.errors import InvariantBroken
from kernel.domain.framing import checksum
from kernel.ports import LogMessage
from kernel.view.memory import MemoryView
from schemas.answers import AnyAnswer, Refusal
from schemas.entries import encode_entry
from tests.support.folding import EXECUTION, ListLog, started
from tests.support.records import make_header
from workers.projecting.batch import FoldedBatch, fold_batch, inspect
from workers.projecting.memory import ExecutionMemory, ShardMemory


def messages_of(log: ListLog) -> list[LogMessage]:
    """Return a story's entries as they lie in the log."""
    return [framed(encode_entry(entry), seq=position.seq, entry_id=entry.id) for entry, position in log.entries]


def framed(payload: bytes, *, seq: int, entry_id: str) -> LogMessage:
    return LogMessage(
        shard=0,
        seq=seq,
        stored_at=0,
        tenant="default",
        entry_id=entry_id,
        execution_id=EXECUTION,
        checksum=checksum(tenant="default", execution_id=EXECUTION, entry_id=entry_id, payload=payload),
        reply_to="",
        payload=payload,
    )


async def fold(messages: list[LogMessage], *, view: MemoryView | None = None) -> FoldedBatch:
    memory = ShardMemory(executions_max=8)
    return await fold_batch(view or MemoryView(), memory, [inspect(message) for message in messages])


def answers_of(folded: FoldedBatch) -> list[AnyAnswer | None]:
    return [each.answer for each in folded.answered]


async def test_a_damaged_payload_is_parked_and_halts_its_execution() -> None:
    log = started()
    log.cancel()
    log.submit()
    messages = messages_of(log)
    # Still an entry of this execution, and of another content than was written.
    payload = messages[2].payload.replace(b'"api"', b'"apx"')
    assert payload != messages[2].payload
    messages[2] = msgspec.structs.replace(messages[2], payload=payload)

    folded = await fold(messages)

    assert [parked.seq for parked in folded.parked] == [messages[2].seq]
    assert folded.changes[0].after.status == "running"
    assert folded.changes[0].after.halted
    for answer in answers_of(folded)[2:]:
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.detail) == ("unavailable", "halted")


def test_a_record_that_was_not_loaded_is_never_read_as_absent() -> None:
    known = ExecutionMemory(make_header(), is_whole=False)

    with pytest.raises(InvariantBroken):
        known.step("0" * 64)
    known.learn([b"s" + bytes(32)], [None])
    assert known.step("0" * 64) is None
