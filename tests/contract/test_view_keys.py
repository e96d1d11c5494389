"""Keys of the view: every tenant is in every key, and a shard's keys lie in one slot."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.domain.errors import InvariantBroken
from kernel.ports import DutyKind, Located
from kernel.view import keys, scripts
from schemas.ids import AGENT_ID, TENANT_ID
from tests.support.records import entry_id, execution_id

TENANT_BUILDERS: list[Callable[[str], str]] = [
    lambda tenant: keys.execution_key(1, tenant, execution_id(1)),
    lambda tenant: keys.list_key(1, tenant),
    lambda tenant: keys.list_key(1, tenant, agent_id="a", status="running"),
    lambda tenant: keys.live_key(1, tenant, "a"),
    lambda tenant: keys.approvals_key(1, tenant),
    lambda tenant: keys.approvals_key(1, tenant, status="pending", agent_id="a"),
    lambda tenant: keys.approvals_key(1, tenant, status="pending", execution_id=execution_id(1)),
    lambda tenant: keys.create_keys_key(1, tenant),
    lambda tenant: keys.directory_value(tenant, "a"),
    lambda tenant: keys.slots_key(tenant, "a"),
    lambda tenant: keys.spent_key(tenant, "bytes_per_day", 1),
    lambda tenant: keys.bucket_key(tenant, b"b" * 16),
    lambda tenant: keys.place(tenant, execution_id(1), "a"),
]
KINDS: list[DutyKind] = ["delivery", "lease", "deadline", "approval"]

tenants = st.from_regex(TENANT_ID, fullmatch=True)
agents = st.from_regex(AGENT_ID, fullmatch=True)


@pytest.mark.parametrize("build", TENANT_BUILDERS)
@pytest.mark.parametrize("tenant", ["", "a:b", "a/b", "a b", "{a}", "a" * 65, "ä"])
def test_a_key_without_its_tenant_cannot_be_built(build: Callable[[str], str], tenant: str) -> None:
    with pytest.raises(InvariantBroken):
        build(tenant)


@pytest.mark.parametrize("build", TENANT_BUILDERS)
def test_two_tenants_never_share_a_key(build: Callable[[str], str]) -> None:
    assert build("acme") != build("acme2")


def test_all_keys_of_a_shard_share_its_hash_tag() -> None:
    shard_keys = keys.shard_keys(3)
    built = [
        *msgspec.structs.astuple(shard_keys),
        *(build("acme").replace("{s1}", "{s3}") for build in TENANT_BUILDERS[:8]),
        keys.directory_key(3, execution_id(1)),
        keys.answers_key(3, keys.answer_slice(entry_id(1))),
    ]

    assert all(key.startswith("{s3}:") for key in built)
    assert len(set(built)) == len(built)
    assert keys.PROJECTORS.startswith("{stepwell}:")


@given(tenant=tenants, agent_id=agents, kind=st.sampled_from(KINDS))
def test_a_due_item_names_its_duty_and_its_place(tenant: str, agent_id: str, kind: DutyKind) -> None:
    where = keys.place(tenant, execution_id(1), agent_id)

    parsed = keys.parse_due_member(keys.due_member(kind, where))

    assert parsed == (kind, tenant, execution_id(1), agent_id)


@given(tenant=tenants, agent_id=agents)
def test_the_directory_gives_back_tenant_and_agent(tenant: str, agent_id: str) -> None:
    found = keys.located(keys.directory_value(tenant, agent_id).encode())

    assert found == Located(tenant=tenant, agent_id=agent_id)


@given(tenant=tenants, one=agents, other=agents)
def test_webhook_slots_lie_with_their_tenant_and_are_an_agents_own(tenant: str, one: str, other: str) -> None:
    found = keys.slots_key(tenant, one)

    assert found.startswith(f"{{t:{tenant}}}:")
    assert (found == keys.slots_key(tenant, other)) == (one == other)


@given(one=agents, other=agents, status=st.sampled_from(["", "running", "failed"]))
def test_lists_of_different_things_have_different_keys(one: str, other: str, status: str) -> None:
    names = [
        keys.list_key(1, "acme"),
        keys.list_key(1, "acme", status="running"),
        keys.list_key(1, "acme", agent_id=one, status=status),
        keys.list_key(1, "acme", agent_id=other, status=status),
    ]

    assert len(set(names)) == (4 if one != other else 3)


@given(agent_id=agents)
def test_lists_of_approvals_of_different_things_have_different_keys(agent_id: str) -> None:
    wholes: list[dict[str, str]] = [{}, {"status": "pending"}]
    parts: list[dict[str, str]] = [{}, {"agent_id": agent_id}, {"execution_id": execution_id(1)}]

    names = [keys.approvals_key(1, "acme", **whole, **part) for whole in wholes for part in parts]

    assert len(set(names)) == 6


@given(agent_id=agents)
def test_a_member_of_a_list_of_approvals_gives_back_what_it_names(agent_id: str) -> None:
    member = keys.approval_member(entry_id(1), execution_id(1), agent_id)

    assert keys.parse_approval_member(member) == (entry_id(1), execution_id(1), agent_id)


def test_an_answer_of_an_entry_without_a_time_has_no_place() -> None:
    with pytest.raises(InvariantBroken):
        keys.answer_slice("lease-expired-1")


def test_every_script_says_what_it_guards_and_what_it_is_given() -> None:
    loaded = [value for value in vars(scripts).values() if isinstance(value, scripts.Script)]
    files = {path.name for path in scripts.resources.files("kernel.view").iterdir() if path.name.endswith(".lua")}

    assert {f"{script.name}.lua" for script in loaded} == files
    for script in loaded:
        text = script.source.decode()
        assert text.startswith("#!lua"), script.name
        assert "-- KEYS: " in text, script.name
        assert "\n-- " in text.partition("-- KEYS: ")[0], script.name
