"""Two releases of the reference client, unmodified, under a bundle: a grant, a denial, an expiry, limits, refusals.

The agent that asks is killed before a person answers; what it hears of a refusal are the client's own exceptions.
"""

import pytest

from tests.reference.deployment import RELEASES, Release
from tests.reference.governance import PROSE, RATIONALE, Governed
from tests.reference.runs import Record

GOVERNED = tuple(release for release in RELEASES if release.version in {"0.16.0", "0.29.2"})

pytestmark = [
    # With the other reference tests: the kernel, the deployments and the runs in the background are the same.
    pytest.mark.xdist_group("reference"),
    pytest.mark.parametrize("release", GOVERNED, ids=lambda release: release.version),
]


def test_an_execution_that_needs_an_approval_is_blocked(governed: Governed) -> None:
    waiting, asked_for = governed.while_it_waited, governed.asked_for

    assert waiting.execution.status == "blocked"
    assert [(step.target, step.status) for step in waiting.steps] == [
        ("record", "succeeded"),
        ("pay", "awaiting_approval"),
    ]
    assert (asked_for.status, asked_for.message) == ("pending", "May it pay?")
    assert asked_for.step_id == waiting.step("pay").step_id


def test_a_killed_agent_resumes_after_a_grant_and_completes(governed: Governed) -> None:
    payment = governed.payment

    assert (payment.execution.status, payment.execution.failure_reason) == ("completed", "")
    before, paid, after = payment.execution.output
    assert (before, paid) == (payment.step("record", {"name": "before"}).result, 7)
    assert after == payment.step("record", {"name": "after"}).result
    assert governed.granted.status == "granted"
    assert payment.count("approval.granted") == payment.count("execution.resumed") == 1


def test_a_granted_tool_runs_once_and_earlier_ones_are_replayed(governed: Governed) -> None:
    effects = governed.effects_of(governed.payment)

    assert [(effect.name, effect.facts.get("name")) for effect in effects] == [
        ("record", "before"),
        ("pay", None),
        ("record", "after"),
    ]
    first, paid, last = effects
    assert first.facts["mark"] == governed.payment.execution.output[0]
    # What ran after the grant ran in another process, for another dispatch.
    assert first.pid != paid.pid == last.pid
    assert first.dispatch != paid.dispatch == last.dispatch
    assert governed.payment.count("step.executing", governed.payment.step("pay")) == 1


def test_a_denial_reaches_the_agent_with_its_rationale(governed: Governed) -> None:
    asked = governed.refusals["asked"]

    assert (governed.denied.status, governed.denied.rationale) == ("denied", RATIONALE)
    assert _refusal(asked)[:2] == ["PolicyError", RATIONALE]
    assert _goes_on(asked)
    assert asked.step("asked").error["reason"] == RATIONALE
    assert asked.count("approval.requested") == asked.count("approval.denied") == 1


def test_an_expiry_reaches_the_agent_as_a_timeout(governed: Governed) -> None:
    hurried = governed.refusals["hurried"]

    assert _refusal(hurried)[:2] == ["PolicyError", "approval_timeout"]
    assert _goes_on(hurried)
    assert hurried.count("approval.requested") == hurried.count("approval.expired") == 1


def test_a_refusal_names_its_rule_where_the_release_passes_it_on(governed: Governed, release: Release) -> None:
    is_old = release.version == "0.16.0"

    assert _refusal(governed.refusals["forbidden"], at=1)[2] == ("" if is_old else "house")


def test_a_call_over_the_limit_raises_the_clients_own_exception(governed: Governed) -> None:
    limited = governed.refusals["limited"]

    assert limited.execution.output[0] == ["returned", "first"]
    assert _refusal(limited, at=1) == ["RateLimited", "rate_limit_exceeded"]
    assert _goes_on(limited)
    assert [step.args for step in limited.steps if step.target == "mail"] == [{"to": "first"}]


def test_a_policy_denial_is_text_from_a_tool_and_an_exception_from_a_step(governed: Governed) -> None:
    forbidden = governed.refusals["forbidden"]

    outcome, text = forbidden.execution.output[0]
    assert outcome == "returned"
    assert text.startswith("export not allowed.")
    assert "policy_denied" in text
    assert _refusal(forbidden, at=1)[:2] == ["PolicyError", PROSE]
    assert _goes_on(forbidden)


def test_a_refusal_that_nobody_catches_fails_the_execution_with_its_reason(governed: Governed) -> None:
    forbidden, limited = (governed.refusals[f"{name} and uncaught"].execution for name in ("forbidden", "limited"))

    assert (forbidden.status, forbidden.failure_reason) == ("failed", f"policy_denied: {PROSE}")
    assert (limited.status, limited.failure_reason) == ("failed", "rate_limit_exceeded")


def test_no_refused_body_runs(governed: Governed) -> None:
    ran = {name: [effect.name for effect in governed.effects_of(run)] for name, run in governed.refusals.items()}

    assert ran == {
        "asked": ["record"],
        "hurried": ["record"],
        "limited": ["mail", "record"],
        "forbidden": ["record"],
        "forbidden and uncaught": [],
        "limited and uncaught": ["mail"],
    }


def _refusal(record: Record, at: int = 0) -> list[str]:
    """What the agent heard of the call at this place."""
    return record.execution.output[at]


def _goes_on(record: Record) -> bool:
    """Whether the agent worked on after the refusal, to the end."""
    return record.execution.status == "completed" and record.execution.output[-1][0] == "returned"
