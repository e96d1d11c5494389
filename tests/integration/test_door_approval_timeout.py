"""How long an approval waits: as long as its rule says, else as long as the door is set up for."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from kernel.door.policing import ARGS_BYTES_INLINE_MAX
from tests.support.door import rig_in_memory

DEFAULT = timedelta(minutes=15)


@pytest.mark.parametrize("args", [None, "x" * ARGS_BYTES_INLINE_MAX], ids=["small", "judged beside the loop"])
@pytest.mark.parametrize(
    ("settings", "config", "waits"),
    [
        ({}, "", DEFAULT),
        ({"approval_timeout_seconds": 90.5}, "", timedelta(seconds=90.5)),
        ({"approval_timeout_seconds": 90.5}, ", approval_config: {approvers: [a]}", timedelta(seconds=90.5)),
        ({"approval_timeout_seconds": 90.5}, ", approval_config: {timeout: 1h}", timedelta(hours=1)),
    ],
)
async def test_an_approval_waits_as_its_rule_says_and_else_as_the_door_is_set_up(
    settings: dict[str, Any], config: str, waits: timedelta, args: Any
) -> None:
    async with rig_in_memory(**settings) as rig:
        await rig.register()
        bundle = f"rules: [{{id: ask, then: {{decision: require_approval{config}}}}}]"
        assert (await rig.call("POST", "/v0/policies/agent", json={"bundle": bundle})).status_code == 204
        run = await rig.started()

        blocked = (await run.submit("t", args)).json()

        assert blocked["decision"] == "blocked"
        approval = (await rig.call("GET", f"/v0/approvals/{blocked['approval_id']}")).json()
        created_at, timeout_at = (datetime.fromisoformat(approval[name]) for name in ("created_at", "timeout_at"))
        assert timeout_at - created_at == waits
