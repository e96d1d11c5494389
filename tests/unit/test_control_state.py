"""The fold of the control stream: who is registered, what changed, what was refused."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from kernel.control.state import (
    AGENTS_MAX,
    Accepted,
    AgentRecord,
    ControlAnswer,
    ControlState,
    fold_control,
    fold_page,
    read_control_entry,
)
from kernel.domain.errors import Conflict, Invalid, InvariantBroken, Misconfigured, NotFound, TooMany
from kernel.ports import ControlMessage
from schemas.control import (
    AgentDeleted,
    AgentDescribed,
    AgentPut,
    AnyControlEntry,
    SealedSecret,
    ShardsSet,
    encode_control,
)

OLD, NEW, NEXT = (SealedSecret(key_id="k", nonce=b"n", ciphertext=text) for text in (b"old", b"new", b"next"))


def _put(agent_id: str = "a", *, tenant: str = "default", at: int = 1, **members: object) -> AgentPut:
    given = {"webhook_url": "http://one.example", "secret": OLD} | members
    return AgentPut(id="e", at=at, by="api", tenant=tenant, agent_id=agent_id, **given)  # pyright: ignore[reportArgumentType] - the members vary by test


def _folded(*entries: AnyControlEntry) -> tuple[ControlState, list[ControlAnswer]]:
    return fold_page(ControlState(), list(enumerate(entries, start=1)))


def _agent(state: ControlState, agent_id: str = "a", tenant: str = "default") -> AgentRecord:
    return state.agents[tenant][agent_id]


def test_a_first_registration_is_new_and_takes_the_defaults() -> None:
    state, answers = _folded(_put(at=7))

    assert answers == [Accepted(is_new=True)]
    assert _agent(state) == AgentRecord(
        tenant="default",
        agent_id="a",
        webhook_url="http://one.example",
        secret=OLD,
        next_secret=None,
        require_v1=False,
        max_concurrency=64,
        description=None,
        input_schema=b"null",
        output_schema=b"null",
        registered_seq=1,
        registered_at=7,
        updated_at=7,
    )


def test_a_first_registration_keeps_every_member_it_sends() -> None:
    state, _ = _folded(_put(next_secret=NEXT, require_v1=True, max_concurrency=3))

    agent = _agent(state)
    assert (agent.next_secret, agent.require_v1, agent.max_concurrency) == (NEXT, True, 3)


def test_a_first_registration_without_a_secret_is_refused_and_leaves_no_trace() -> None:
    state, answers = _folded(_put(secret=UNSET, next_secret=NEXT))

    assert isinstance(answers[0], Invalid)
    assert answers[0].path == "secret"
    assert state == ControlState(seq=1)


def test_a_change_keeps_what_it_does_not_send() -> None:
    first = _put(next_secret=NEXT, require_v1=True, max_concurrency=3)
    change = _put(webhook_url="http://two.example", secret=UNSET, at=9)

    state, answers = _folded(first, change)

    assert answers[1] == Accepted(is_new=False)
    before = _agent(_folded(first)[0])
    assert _agent(state) == msgspec.structs.replace(before, webhook_url="http://two.example", updated_at=9)


@pytest.mark.parametrize(
    ("members", "secrets"),
    [
        ({"secret": NEW}, (NEW, None)),
        ({"secret": NEW, "next_secret": NEXT}, (NEW, NEXT)),
        ({"secret": UNSET, "next_secret": NEW}, (OLD, NEW)),
        ({"secret": UNSET}, (OLD, NEXT)),
    ],
)
def test_sending_a_secret_sets_both_secrets(
    members: dict[str, Any], secrets: tuple[SealedSecret, SealedSecret | None]
) -> None:
    state, _ = _folded(_put(next_secret=NEXT), _put(**members))

    assert (_agent(state).secret, _agent(state).next_secret) == secrets


def test_a_change_sets_every_member_it_sends() -> None:
    state, _ = _folded(_put(), _put(require_v1=True, max_concurrency=1))

    assert (_agent(state).require_v1, _agent(state).max_concurrency) == (True, 1)


def test_times_of_an_agent_never_step_back() -> None:
    state, _ = _folded(_put(at=9), _put(at=5))

    assert _agent(state).updated_at == 9


def test_an_agent_registered_again_after_deletion_is_a_new_registration() -> None:
    deletion = AgentDeleted(id="e", at=2, by="api", tenant="default", agent_id="a")

    state, answers = _folded(_put(require_v1=True, at=1), deletion, _put(at=3))

    assert answers == [Accepted(is_new=True), Accepted(is_new=False), Accepted(is_new=True)]
    agent = _agent(state)
    assert (agent.registered_seq, agent.registered_at, agent.require_v1) == (3, 3, False)


def test_a_deleted_agent_is_unknown() -> None:
    deletion = AgentDeleted(id="e", at=2, by="api", tenant="default", agent_id="a")

    state, answers = _folded(_put(), deletion, deletion)

    assert isinstance(answers[2], NotFound)
    assert answers[2].noun == "agent"
    assert state.agents == {"default": {}}


def test_metadata_replaces_all_three_members() -> None:
    def described(at: int, description: str | None, schema: bytes) -> AgentDescribed:
        return AgentDescribed(
            id="e",
            at=at,
            by="a",
            tenant="default",
            agent_id="a",
            description=description,
            input_schema=Raw(schema),
            output_schema=Raw(b"null"),
        )

    state, answers = _folded(_put(), described(4, "says hello", b'{"n": 1.0}'))
    assert answers[1] == Accepted(is_new=False)
    assert _agent(state).description == "says hello"
    assert _agent(state).input_schema == b'{"n": 1.0}'
    assert _agent(state).updated_at == 4

    state, _ = fold_control(state, 3, described(5, None, b"null"))
    assert _agent(state).description is None
    assert _agent(state).input_schema == b"null"


def test_metadata_of_an_unknown_agent_is_refused() -> None:
    entry = AgentDescribed(
        id="e",
        at=1,
        by="a",
        tenant="other",
        agent_id="a",
        description=None,
        input_schema=Raw(b"null"),
        output_schema=Raw(b"null"),
    )

    _, answers = _folded(_put(), entry)

    assert isinstance(answers[1], NotFound)


def test_agents_of_two_tenants_do_not_touch_each_other() -> None:
    deletion = AgentDeleted(id="e", at=2, by="api", tenant="one", agent_id="a")

    state, _ = _folded(_put(tenant="one"), _put(tenant="two"), deletion)

    assert _agent(state, tenant="two").registered_seq == 2
    assert state.agents["one"] == {}


def test_a_tenant_cannot_fill_the_memory_of_every_process() -> None:
    one = _agent(_folded(_put())[0])
    ids = [f"a{number}" for number in range(AGENTS_MAX)]
    full = ControlState(agents={"default": {each: msgspec.structs.replace(one, agent_id=each) for each in ids}})

    state, answers = fold_page(full, [(1, _put("more")), (2, _put("a0")), (3, _put("more", tenant="other"))])

    assert isinstance(answers[0], TooMany)
    assert answers[1:] == [Accepted(is_new=False), Accepted(is_new=True)]
    assert len(state.agents["default"]) == AGENTS_MAX


def test_the_number_of_shards_is_set_once() -> None:
    def shards(number: int) -> ShardsSet:
        return ShardsSet(id="e", at=1, by="kernel", shards=number)

    state, answers = _folded(shards(8), shards(4), shards(8))

    assert state.shards == 8
    assert answers[0] == Accepted(is_new=True)
    assert isinstance(answers[1], Conflict)
    assert "8" in answers[1].reason
    assert answers[2] == Accepted(is_new=False)


def test_no_shards_at_all_are_refused() -> None:
    state, answers = _folded(ShardsSet(id="e", at=1, by="kernel", shards=0))

    assert isinstance(answers[0], Invalid)
    assert state.shards is None


def test_a_missing_entry_stops_the_fold() -> None:
    with pytest.raises(InvariantBroken, match="control entry 2 is missing"):
        fold_page(ControlState(), [(1, _put()), (3, _put())])


def test_the_state_before_a_page_stays_as_it_was() -> None:
    before, _ = _folded(_put())

    after, _ = fold_control(before, 2, _put("b"))

    assert set(before.agents["default"]) == {"a"}
    assert set(after.agents["default"]) == {"a", "b"}


_agent_ids = st.sampled_from(["a", "b"])
_tenants = st.sampled_from(["one", "two"])
_entries = st.one_of(
    st.builds(
        _put,
        _agent_ids,
        tenant=_tenants,
        at=st.integers(0, 9),
        secret=st.sampled_from([OLD, NEW, UNSET]),
        next_secret=st.sampled_from([NEXT, UNSET]),
    ),
    st.builds(
        AgentDeleted, id=st.just("e"), at=st.integers(0, 9), by=st.just("api"), tenant=_tenants, agent_id=_agent_ids
    ),
    st.builds(ShardsSet, id=st.just("e"), at=st.just(1), by=st.just("kernel"), shards=st.integers(0, 3)),
)


@given(entries=st.lists(_entries, max_size=20), cuts=st.sets(st.integers(0, 20)))
def test_pages_of_any_size_fold_alike(entries: list[AnyControlEntry], cuts: set[int]) -> None:
    whole, answers = _folded(*entries)

    state, by_page = ControlState(), []
    bounds = sorted({0, len(entries)} | {cut for cut in cuts if cut < len(entries)})
    for start, end in pairwise(bounds):
        state, some = fold_page(state, [(seq + 1, entries[seq]) for seq in range(start, end)])
        by_page += some

    assert state == whole
    assert [repr(answer) for answer in by_page] == [repr(answer) for answer in answers]


def test_an_entry_is_read_as_it_was_written() -> None:
    entry = _put(next_secret=NEXT)

    assert read_control_entry(ControlMessage(seq=1, payload=encode_control(entry))) == entry


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"shards_set","schema":2,"id":"e","at":1,"by":"k","shards":8}',
        b'{"type":"key_rotated","schema":1,"id":"e","at":1,"by":"k"}',
    ],
)
def test_an_entry_of_a_later_build_says_to_upgrade(payload: bytes) -> None:
    with pytest.raises(Misconfigured, match=r"control entry 5 .* upgrade this process"):
        read_control_entry(ControlMessage(seq=5, payload=payload))


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"\xff", b'{"type":"shards_set","schema":1,"id":"e","at":1,"by":"k","shards":"8"}']
)
def test_a_damaged_entry_is_never_skipped(payload: bytes) -> None:
    with pytest.raises(InvariantBroken, match="control entry 5 is damaged"):
        read_control_entry(ControlMessage(seq=5, payload=payload))
