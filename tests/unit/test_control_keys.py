"""Keys as doors look them up: by hash, in every process soon, and never after their end."""

import pytest

from kernel.control.control import Control
from kernel.control.keys import Keys, key_hash
from kernel.control.sealing import Sealer
from kernel.control.state import ControlState, KeyRecord
from kernel.domain.errors import NotFound
from kernel.log.memory import MemoryLog
from schemas.control import KeyCreated, KeyRevoked
from schemas.ids import new_uuid7
from tests.support.control import POLL_SECONDS, SECONDS, following
from tests.support.wait import wait_until_async


@pytest.fixture(scope="module")
def sealer() -> Sealer:
    return Sealer("a master key of the tests")


def _record(key_id: str, key_hash_: bytes, *, tenant: str = "default", expires_at: int | None = None) -> KeyRecord:
    return KeyRecord(
        tenant=tenant,
        key_id=key_id,
        name="ci",
        scopes=frozenset({"executions:read"}),
        hash=key_hash_,
        created_at=1,
        expires_at=expires_at,
    )


def _keys(*records: KeyRecord) -> Keys:
    keys = Keys()
    keys.follow(_state(*records), [(each.tenant, each.key_id) for each in records])
    return keys


def _state(*records: KeyRecord) -> ControlState:
    by_tenant: dict[str, dict[str, KeyRecord]] = {}
    for record in records:
        by_tenant.setdefault(record.tenant, {})[record.key_id] = record
    return ControlState(keys=by_tenant)


def test_a_key_is_found_by_its_whole_hash_alone() -> None:
    first, second = b"p" * 8 + b"1" * 24, b"p" * 8 + b"2" * 24
    keys = _keys(_record("a", first), _record("b", second))

    for sent, key_id in ((first, "a"), (second, "b")):
        found = keys.holder(sent, now=1)
        assert found is not None
        assert found.key_id == key_id
    for sent in (b"p" * 32, b"p" * 8, first[:-1], first + b"0", b""):
        assert keys.holder(sent, now=1) is None


def test_a_key_ends_at_the_time_it_was_given() -> None:
    keys = _keys(_record("a", b"h" * 32, expires_at=100))

    assert keys.holder(b"h" * 32, now=99) is not None
    assert keys.is_valid("a", now=99)
    assert keys.is_any_valid(now=99)
    for now in (100, 101):
        assert keys.holder(b"h" * 32, now=now) is None
        assert not keys.is_valid("a", now=now)
        assert not keys.is_any_valid(now=now)
    # It can still be listed and revoked.
    assert keys.get("a") is not None


def test_of_two_keys_with_one_prefix_the_other_stays_when_one_is_revoked() -> None:
    first, second = _record("a", b"p" * 8 + b"1" * 24), _record("b", b"p" * 8 + b"2" * 24)
    keys = _keys(first, second)

    keys.follow(_state(second), [("default", "a")])

    assert keys.holder(first.hash, now=1) is None
    assert keys.holder(second.hash, now=1) == second
    keys.follow(_state(), [("default", "b"), ("default", "never")])
    assert keys.holder(second.hash, now=1) is None
    assert keys.listed(None) == []


def test_an_entry_about_another_tenants_key_of_that_id_drops_nothing() -> None:
    record = _record("a", b"h" * 32)
    keys = _keys(record)

    keys.follow(_state(record), [("acme", "a")])

    assert keys.holder(b"h" * 32, now=1) == record


def test_keys_are_listed_by_tenant_and_in_order_of_their_ids() -> None:
    records = [_record("c", b"1" * 32), _record("a", b"2" * 32), _record("b", b"3" * 32, tenant="acme")]
    keys = _keys(*records)

    assert [each.key_id for each in keys.listed(None)] == ["a", "b", "c"]
    assert [each.key_id for each in keys.listed("default")] == ["a", "c"]
    assert keys.listed("nobody") == []


async def test_a_key_works_at_once_here_and_soon_elsewhere_and_ends_likewise(sealer: Sealer) -> None:
    log = MemoryLog(shards=1)
    here, there = (Control(log, sealer, poll_seconds=POLL_SECONDS) for _ in range(2))
    digest = key_hash(b"sw_a key")
    made = KeyCreated(
        id=new_uuid7(),
        at=1,
        by="api",
        tenant="default",
        key_id=new_uuid7(),
        name="ci",
        scopes=("executions:read",),
        hash=digest,
    )
    async with following(here, there):
        await here.submit(made, timeout_seconds=SECONDS)
        assert here.keys.holder(digest, now=2) is not None
        await wait_until_async(lambda: there.keys.holder(digest, now=2), "the other process to know the key")

        revoked = KeyRevoked(id=new_uuid7(), at=3, by="api", tenant="default", key_id=made.key_id)
        await here.submit(revoked, timeout_seconds=SECONDS)
        assert here.keys.holder(digest, now=4) is None
        await wait_until_async(lambda: there.keys.holder(digest, now=4) is None, "the other process to refuse the key")

        # A repeat of the entry that made it changes nothing; what is revoked stays so.
        await here.submit(made, timeout_seconds=SECONDS)
        assert here.keys.holder(digest, now=4) is None
        with pytest.raises(NotFound):
            await here.submit(
                KeyRevoked(id=new_uuid7(), at=5, by="api", tenant="default", key_id=made.key_id),
                timeout_seconds=SECONDS,
            )
