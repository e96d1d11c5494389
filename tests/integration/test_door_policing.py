"""The door's verdicts: the bundle decides, tokens that were taken for nothing go back, a missing bucket fails as
told.
"""

from typing import Any

import pytest

from kernel.domain.errors import ViewUnavailable
from kernel.view.memory import MemoryView
from tests.support.door import MemoryRig, Run, rig_in_memory, rig_settings, running

SHARED = """
rules:
  - id: shared
    when: {{target: shared}}
    then:
      decision: allow
      rate_limit: {{max_calls: {calls}, window: 1h, per_what: {per}, on_limiter_error: {error}}}
  - id: rest
    priority: 1
    then: {{decision: allow}}
"""


def bundle(calls: int = 1, per: str = "agent", error: str = "allow") -> str:
    return SHARED.format(calls=calls, per=per, error=error)


async def load(rig: MemoryRig, text: str, agent_id: str = "agent") -> None:
    response = await rig.call("POST", f"/v0/policies/{agent_id}", json={"bundle": text})
    assert response.status_code == 204, response.text


async def decision(run: Run, target: str, args: Any = None, **options: Any) -> tuple[str, str]:
    body = (await run.submit(target, args, **options)).json()
    return body["decision"], body.get("reason", "")


async def test_the_newest_bundle_decides_about_new_steps_and_not_about_recorded_ones() -> None:
    async with rig_in_memory(no_policy="") as rig:
        await rig.register()
        run = await rig.started()
        assert await decision(run, "anything") == ("denied", "no_policy")
        await load(rig, "rules: [{id: never, when: {target: rm}, then: {decision: deny, reason: too risky}}]")
        assert await decision(run, "rm") == ("denied", "too risky")
        assert await decision(run, "ls") == ("denied", "policy_denied")
        await load(rig, "default_action: allow")
        await rig.expire(run)
        run = Run(rig, run.execution_id, await rig.claim(run.execution_id))
        assert await decision(run, "ls") == ("denied", "policy_denied"), "a recorded step is not judged again"
        assert await decision(run, "cat") == ("proceed", "")
        assert await decision(run, "large", "x" * 100_000) == ("proceed", "")


async def test_a_token_that_was_taken_for_a_recorded_step_goes_back() -> None:
    async with rig_in_memory() as rig:
        await rig.register()
        await load(rig, bundle(calls=3))
        run = await rig.started()
        step_id = await run.proceed("shared", 1)
        await run.complete_step(step_id, "done")
        await run.proceed("shared", "orphan")
        await rig.expire(run)
        again = Run(rig, run.execution_id, await rig.claim(run.execution_id))

        assert await decision(again, "shared", 1) == ("replay", "")
        assert await decision(again, "shared", "orphan") == ("proceed", "")
        assert await decision(again, "shared", 2) == ("proceed", ""), "neither took a token for good"
        assert await decision(again, "shared", 3) == ("rate_limited", "rate_limit_exceeded")
        assert await decision(again, "other") == ("proceed", "")


async def test_a_step_that_may_have_run_already_is_denied_before_a_token_is_taken() -> None:
    async with rig_in_memory() as rig:
        await rig.register()
        await load(rig, bundle(calls=2))
        run = await rig.started()
        await run.proceed("shared", idempotency="at_most_once")
        await rig.expire(run)
        again = Run(rig, run.execution_id, await rig.claim(run.execution_id))

        assert await decision(again, "shared", idempotency="at_most_once") == ("replay", "")
        assert await decision(again, "shared", idempotency="at_most_once") == ("denied", "indeterminate_retry")
        assert await decision(again, "shared", 2) == ("proceed", ""), "the denial took no token for good"
        assert await decision(again, "shared", 3) == ("rate_limited", "rate_limit_exceeded")


async def test_a_submission_that_is_refused_costs_no_token() -> None:
    async with rig_in_memory() as rig:
        await rig.register()
        await load(rig, bundle(calls=1))
        run = await rig.started()

        refused = await run.submit("shared", settle=[{"step_id": "0" * 64, "result": None}])
        assert refused.status_code == 404

        assert await decision(run, "shared") == ("proceed", "")


@pytest.mark.parametrize("per", ["agent", "global"])
async def test_agents_share_a_bucket_only_under_global(per: str) -> None:
    async with rig_in_memory() as rig:
        for agent_id in ("agent", "other"):
            await rig.register(agent_id)
            await load(rig, bundle(per=per), agent_id)
        first, second = await rig.started(), await rig.started("other")

        assert await decision(first, "shared") == ("proceed", "")
        assert await decision(second, "shared") == (
            ("proceed", "") if per == "agent" else ("rate_limited", "rate_limit_exceeded")
        )


class NoBuckets(MemoryView):
    """A view whose buckets cannot be reached."""

    async def take_token(self, tenant: str, bucket: bytes, *, max_calls: int, window_ms: int) -> bool:
        raise ViewUnavailable("the buckets are away")


@pytest.mark.parametrize(
    ("error", "expected"), [("allow", ("proceed", "")), ("deny", ("rate_limited", "rate_limiter_unavailable"))]
)
async def test_a_limiter_that_is_away_means_what_the_rule_says(error: str, expected: tuple[str, str]) -> None:
    rig = MemoryRig(rig_settings(), view=NoBuckets())
    async with running(rig):
        await rig.register()
        await load(rig, bundle(error=error))
        assert await decision(await rig.started(), "shared") == expected
