"""Idempotency-Keys: the first answer stands, and only the same request is given it again."""

from typing import assert_never

from msgspec.structs import replace

from kernel.domain.errors import InvariantBroken
from kernel.domain.fold.draft import Draft
from schemas.answers import AnyAnswer, Claimed, Created, Decided, DecidedBefore, Done, Ignored, Recorded, Refusal
from schemas.entries import RequestKey
from schemas.records import KeyRecord

KEY_CONFLICT = Refusal(code="conflict", message="the Idempotency-Key was used with another request")


def first_answer(draft: Draft, key: RequestKey | None) -> AnyAnswer | None:
    """Return the answer that this key already has, None for a fresh one.

    A key that was used under a lease is dropped with it: the next claim makes it fresh again.
    """
    if key is None:
        return None
    record = draft.records.key(key.key)
    if record is None or record.claims not in (0, draft.header.claims):
        return None
    if record.request != key.request:
        return KEY_CONFLICT
    match record.answer:
        case Decided() as decided:
            return repeated(draft, decided)
        case Recorded() as recorded:
            return replace(recorded, is_replayed=True)
        case Done():
            return Done(is_replayed=True)
        case Created() | Claimed() | Refusal() | DecidedBefore() | Ignored():
            raise InvariantBroken("a request key is bound to an answer that binds none")
        case _:
            assert_never(record.answer)


def repeated(draft: Draft, first: Decided) -> Decided:
    """Return a remembered decision; a `proceed` whose step has ended since must not be said again."""
    if first.decision != "proceed":
        return replace(first, is_replayed=True, is_new=False)
    step = draft.known_step(first.step_id)
    match step.status:
        case "succeeded" | "failed":
            return Decided(
                decision="replay", step_id=step.step_id, result=step.result, error=step.error, is_replayed=True
            )
        case "cancelled":
            return Decided(decision="execution_terminal", is_replayed=True)
        case _:
            return replace(first, is_replayed=True, is_new=False)


def bind_key(draft: Draft, key: RequestKey | None, answer: AnyAnswer, *, is_lasting: bool = False) -> None:
    """Remember the answer under the key: for as long as the present claim lasts, or as the execution lives."""
    if key is not None:
        claims = 0 if is_lasting else draft.header.claims
        draft.put_key(key.key, KeyRecord(request=key.request, claims=claims, answer=answer))
