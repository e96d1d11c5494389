"""The fold of tenants, keys and policies: what was made, what was refused, and that pages of any size fold alike."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from kernel.control.state import (
    BUNDLE_CHARS_MAX,
    KEYS_MAX,
    TENANTS_MAX,
    Accepted,
    ControlAnswer,
    ControlState,
    KeyRecord,
    TenantRecord,
    fold_page,
)
from kernel.domain.errors import Conflict, NotFound, TooMany
from schemas.control import (
    AgentDeleted,
    AgentPut,
    AnyControlEntry,
    KeyCreated,
    KeyRevoked,
    PolicySet,
    Quotas,
    SealedSecret,
    TenantPut,
    TenantSettings,
)

SECRET = SealedSecret(key_id="k", nonce=b"n", ciphertext=b"c")


def _tenant(tenant: str = "acme", **members: Any) -> TenantPut:
    return TenantPut(id="e", at=1, by="operator", tenant=tenant, **members)


def _key(key_id: str = "k1", *, tenant: str = "default", at: int = 5, **members: Any) -> KeyCreated:
    told: dict[str, Any] = {"name": "ci", "scopes": ("executions:read",), "hash": key_id.encode()} | members
    return KeyCreated(id="e", at=at, by="api", tenant=tenant, key_id=key_id, **told)


def _revoked(key_id: str = "k1", *, tenant: str = "default") -> KeyRevoked:
    return KeyRevoked(id="e", at=9, by="api", tenant=tenant, key_id=key_id)


def _agent(agent_id: str = "a", *, tenant: str = "default", at: int = 1) -> AgentPut:
    return AgentPut(
        id="e", at=at, by="api", tenant=tenant, agent_id=agent_id, webhook_url="http://one.example", secret=SECRET
    )


def _deleted(agent_id: str = "a", *, tenant: str = "default") -> AgentDeleted:
    return AgentDeleted(id="e", at=1, by="api", tenant=tenant, agent_id=agent_id)


def _policy(bundle: str, agent_id: str = "a", *, tenant: str = "default", at: int = 7) -> PolicySet:
    return PolicySet(id="e", at=at, by="api", tenant=tenant, agent_id=agent_id, bundle=bundle)


def _folded(*entries: AnyControlEntry, state: ControlState | None = None) -> tuple[ControlState, list[ControlAnswer]]:
    state = state or ControlState()
    return fold_page(state, list(enumerate(entries, start=state.seq + 1)))


def _policy_of(state: ControlState, agent_id: str = "a", tenant: str = "default") -> tuple[str, int]:
    agent = state.agents[tenant][agent_id]
    return agent.bundle, agent.policy_version


# ---------------------------------------------------------------- tenants


def test_the_default_tenant_is_there_from_the_beginning() -> None:
    state, answers = _folded(_tenant("default", quotas=Quotas(live_executions=3)))

    assert ControlState().tenants == {"default": TenantRecord(tenant="default")}
    assert answers == [Accepted(is_new=False)]
    assert state.tenants["default"].quotas == Quotas(live_executions=3)


def test_what_a_change_of_a_tenant_sends_replaces_the_whole_of_it_and_what_it_leaves_out_stays() -> None:
    first = _tenant(
        quotas=Quotas(live_executions=3, log_bytes=9), settings=TenantSettings(no_policy="allow", retention_seconds=0)
    )

    state, answers = _folded(first, _tenant(), _tenant(quotas=Quotas(bytes_per_day=1)))

    assert answers == [Accepted(is_new=True), Accepted(is_new=False), Accepted(is_new=False)]
    assert state.tenants["acme"] == TenantRecord(
        tenant="acme",
        quotas=Quotas(bytes_per_day=1),
        settings=TenantSettings(no_policy="allow", retention_seconds=0),
    )
    state, _ = _folded(_tenant(settings=TenantSettings()), state=state)
    assert state.tenants["acme"] == TenantRecord(tenant="acme", quotas=Quotas(bytes_per_day=1))


def test_operators_cannot_fill_the_memory_of_every_process_with_tenants() -> None:
    names = [f"t{number}" for number in range(TENANTS_MAX)]
    full = ControlState(tenants={name: TenantRecord(tenant=name) for name in names})

    state, answers = _folded(_tenant("more"), _tenant("t0", quotas=Quotas(log_bytes=1)), state=full)

    assert isinstance(answers[0], TooMany)
    assert answers[1] == Accepted(is_new=False)
    assert len(state.tenants) == TENANTS_MAX


# ---------------------------------------------------------------- keys


def test_a_key_is_kept_with_all_that_it_was_made_with() -> None:
    state, answers = _folded(_key(scopes=("operator", "audit:read"), expires_at=99))

    assert answers == [Accepted(is_new=True)]
    assert state.keys["default"]["k1"] == KeyRecord(
        tenant="default",
        key_id="k1",
        name="ci",
        scopes=frozenset({"audit:read", "operator"}),
        hash=b"k1",
        created_at=5,
        expires_at=99,
    )
    assert repr(state.keys["default"]["k1"]) == "KeyRecord(tenant='default', key_id='k1')"


def test_a_revoked_key_is_gone_and_unknown_from_then_on() -> None:
    state, answers = _folded(_key(), _key("k2"), _revoked(), _revoked())

    assert answers[2] == Accepted(is_new=False)
    assert isinstance(answers[3], NotFound)
    assert set(state.keys["default"]) == {"k2"}


def test_a_key_is_revoked_in_its_own_tenant_alone() -> None:
    state, answers = _folded(_tenant(), _key(), _revoked(tenant="acme"))

    assert isinstance(answers[2], NotFound)
    assert answers[2].noun == "key"
    assert "k1" in state.keys["default"]


def test_a_key_of_an_unknown_tenant_is_refused() -> None:
    state, answers = _folded(_key(tenant="acme"))

    assert isinstance(answers[0], NotFound)
    assert answers[0].noun == "tenant"
    assert state == ControlState(seq=1)


def test_a_key_id_is_used_once() -> None:
    state, answers = _folded(_key(), _key(scopes=("operator",)))

    assert isinstance(answers[1], Conflict)
    assert state.keys["default"]["k1"].scopes == {"executions:read"}


def test_a_tenant_cannot_fill_the_memory_of_every_process_with_keys() -> None:
    many = [_key(f"k{number}") for number in range(KEYS_MAX)]

    state, answers = _folded(*many, _key("more"), _tenant(), _key("more", tenant="acme"), _revoked("k0"), _key("more"))

    refused, _, elsewhere, _, after_a_revocation = answers[KEYS_MAX:]
    assert isinstance(refused, TooMany)
    assert elsewhere == after_a_revocation == Accepted(is_new=True)
    assert len(state.keys["default"]) == KEYS_MAX


# ---------------------------------------------------------------- policies


def test_the_version_of_a_policy_is_the_sequence_of_its_entry() -> None:
    state, answers = _folded(_agent(), _policy("one"), _policy("two"))

    assert answers[1:] == [Accepted(is_new=False)] * 2
    assert _policy_of(state) == ("two", 3)
    assert state.agents["default"]["a"].updated_at == 7


def test_the_empty_bundle_removes_the_policy() -> None:
    state, answers = _folded(_agent(), _policy("one"), _policy(""), _policy(""))

    assert answers[2:] == [Accepted(is_new=False)] * 2
    assert _policy_of(state) == ("", 0)


def test_an_agent_that_is_registered_again_keeps_its_policy_and_one_that_is_deleted_does_not() -> None:
    state, _ = _folded(_agent(), _policy("one"), _agent())
    assert _policy_of(state) == ("one", 2)

    state, _ = _folded(_deleted(), _agent(), state=state)
    assert _policy_of(state) == ("", 0)


def test_the_policy_of_an_unknown_agent_is_refused() -> None:
    _, answers = _folded(_agent(tenant="acme"), _policy("one"))

    assert isinstance(answers[1], NotFound)
    assert answers[1].noun == "agent"


def test_policies_of_two_tenants_do_not_touch_each_other() -> None:
    state, _ = _folded(_agent(), _agent(tenant="acme"), _policy("one"), _policy("two", tenant="acme"))

    assert (_policy_of(state), _policy_of(state, tenant="acme")) == (("one", 3), ("two", 4))


def test_the_bundles_of_a_tenant_have_a_bound_together() -> None:
    half = "x" * (BUNDLE_CHARS_MAX // 2)
    base, _ = _folded(_agent(), _agent("b"), _agent("c"), _agent(tenant="acme"))

    page = (_policy(half), _policy(half, "b"), _policy("x", "c"), _policy("x", tenant="acme"))
    state, answers = _folded(*page, state=base)
    assert isinstance(answers[2], TooMany)
    assert answers[3] == Accepted(is_new=False)
    assert _policy_of(state, "c") == ("", 0)

    _, answers = _folded(
        _policy("x", "c"), _policy("y"), _policy("x", "c"), _deleted("b"), _policy(half, "c"), state=state
    )
    assert [type(each) for each in answers] == [TooMany, Accepted, Accepted, Accepted, Accepted]


# ---------------------------------------------------------------- pages

_ids = st.sampled_from(["a", "b"])
_tenants = st.sampled_from(["default", "acme"])
_entries = st.one_of(
    st.builds(
        _tenant,
        _tenants,
        quotas=st.sampled_from([UNSET, Quotas(), Quotas(live_executions=1)]),
        settings=st.sampled_from([UNSET, TenantSettings(), TenantSettings(no_policy="deny")]),
    ),
    st.builds(_key, _ids, tenant=_tenants, at=st.integers(0, 9), expires_at=st.none() | st.integers(0, 9)),
    st.builds(_revoked, _ids, tenant=_tenants),
    st.builds(_agent, _ids, tenant=_tenants, at=st.integers(0, 9)),
    st.builds(_deleted, _ids, tenant=_tenants),
    st.builds(_policy, st.sampled_from(["", "one", "two"]), _ids, tenant=_tenants, at=st.integers(0, 9)),
)


@given(entries=st.lists(_entries, max_size=25), cuts=st.sets(st.integers(0, 25)))
def test_pages_of_any_size_fold_alike(entries: list[AnyControlEntry], cuts: set[int]) -> None:
    whole, answers = _folded(*entries)

    state, by_page = ControlState(), []
    bounds = sorted({0, len(entries)} | {cut for cut in cuts if cut < len(entries)})
    for start, end in pairwise(bounds):
        state, some = _folded(*entries[start:end], state=state)
        by_page += some

    assert state == whole
    assert [repr(answer) for answer in by_page] == [repr(answer) for answer in answers]


@given(entries=st.lists(_entries, max_size=25))
def test_what_one_tenant_does_changes_nothing_of_another(entries: list[AnyControlEntry]) -> None:
    state, _ = _folded(*entries)
    # The others' entries take part as ones that change nothing, so that sequences stay as they are.
    alone, _ = _folded(*(each if _of(each) == "acme" else _tenant("default") for each in entries))

    for records in ("tenants", "agents", "keys"):
        assert getattr(state, records).get("acme") == getattr(alone, records).get("acme")


def _of(entry: AnyControlEntry) -> str:
    tenant = getattr(entry, "tenant", "")
    assert tenant
    return tenant
