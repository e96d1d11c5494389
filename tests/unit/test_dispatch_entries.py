"""The entries of a dispatcher: one id for each duty, whoever appends it."""

from kernel.ports import DueItem
from schemas.records import Header
from tests.support.records import asking_header, make_approval, make_header
from workers.dispatching.entries import approval_expired

PENDING = make_approval()


def due(header: Header | None = None) -> DueItem:
    found = header or asking_header(PENDING)
    return DueItem(kind="approval", tenant="acme", agent_id="researcher", execution_id=found.execution_id, header=found)


def test_an_expiry_has_one_id_whoever_appends_it() -> None:
    first, second = approval_expired(due()), approval_expired(due())

    assert first is not None
    assert second is not None
    assert first.id == second.id == f"approval.{PENDING.approval_id}"
    assert (first.tenant, first.approval_id, first.expires) == ("acme", PENDING.approval_id, None)


def test_an_expiry_brings_a_dispatch_of_its_own() -> None:
    item = due()
    entries = [approval_expired(item) for _ in range(2)]

    dispatches = {entry.dispatch_id for entry in entries if entry is not None}
    assert len(dispatches) == 2
    assert item.header.dispatch.dispatch_id not in dispatches


def test_what_was_decided_meanwhile_does_not_expire() -> None:
    assert approval_expired(due(make_header())) is None
